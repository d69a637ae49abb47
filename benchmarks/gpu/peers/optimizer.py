"""Steps of AdamW on parameters whose gradients are there; cpp/optimizer.cpp is Fulgur's and torch::optim's."""

import torch
from work import NotMeasured, Stretches


def run_optimizer(case, device, _scratch):
    way = case["way"]
    if way == "captured" and device == "cpu":
        raise NotMeasured("steps are captured on a GPU only")
    torch.manual_seed(1)
    parameters = []
    for shape, count in case["shapes"]:
        for _ in range(count):
            p = torch.randn(shape, device=device).requires_grad_()
            p.grad = torch.randn(shape, device=device)
            parameters.append(p)
    options = {"foreach": {"foreach": True}, "fused": {"fused": True}, "captured": {"fused": True, "capturable": True}}[way]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, **options)
    step = optimizer.step
    if way == "captured":
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                optimizer.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            optimizer.step()
        step = graph.replay
    stretches = Stretches(device)
    for _ in range(case["warmup"]):
        step()
    stretches.stamp()
    for _ in range(case["stretches"]):
        for _ in range(case["steps"]):
            step()
        stretches.stamp()
    return {"samples": stretches.samples(case["steps"]), "parameters": sum(p.numel() for p in parameters)}
