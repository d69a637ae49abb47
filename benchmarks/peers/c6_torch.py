"""C6, PyTorch by hand."""

import torch
from first_step import first_step_done
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(1)
y = torch.randint(10, (1024,))
x = torch.randn(10, 784)[y] + torch.randn(1024, 784)
net = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
rows = torch.randperm(1024)[:64]
nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
optimizer.step()
optimizer.zero_grad()
first_step_done()
