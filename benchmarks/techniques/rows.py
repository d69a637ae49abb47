"""Every technique, in the order of docs/techniques.md."""

from technique import Technique
from works import AUTOENCODER, CNN, COSTLY_SAMPLES, GPT, MLP, NET, OWN_BUFFER, SMALL_NET, VALIDATION

CUDA = ["--trainer.accelerator", "cuda"]
VIRTUAL = ["--trainer.accelerator", "virtual"]


def gpu(name, title, line, work, off, on, **more):
    return Technique(name, title, line, work, [*CUDA, *off], [*CUDA, *on], gpu=True, **more)


ROWS = [
    Technique(
        "schedule", "learning-rate schedule", "lr_scheduler: CosineAnnealingLR", MLP,
        ["--optimizer.lr", "0.003", "--lr_scheduler", "null"], ["--optimizer.lr", "0.003", "--lr_scheduler", "CosineAnnealingLR"],
    ),
    Technique(
        "workers", "workers, expensive samples", "data.init_args.num_workers: 2", COSTLY_SAMPLES,
        ["--data.num_workers", "0"], ["--data.num_workers", "2"], result="train_loss",
    ),
    Technique(
        "workers_cheap", "workers, samples in memory", "data.init_args.num_workers: 2", MLP,
        ["--data.num_workers", "0"], ["--data.num_workers", "2"],
    ),
    gpu("pinning", "pinned memory", "data.init_args.pin_memory: true", CNN, ["--data.pin_memory", "false"], ["--data.pin_memory", "true"]),
    Technique(
        "large_batch", "large batch, scaled learning rate", "trainer: {scale_lr: sqrt, base_batch_size: 64}; data.init_args.batch_size: 512", MLP,
        [], ["--data.batch_size", "512", "--trainer.limit_train_batches", "75", "--trainer.scale_lr", "sqrt", "--trainer.base_batch_size", "64"],
        note="as many samples on both sides",
    ),
    Technique("amp", "AMP, CNN", "trainer.precision: bf16-mixed", CNN, [], ["--trainer.precision", "bf16-mixed"]),
    Technique("amp_gpt", "AMP, GPT", "trainer.precision: bf16-mixed", GPT, [], ["--trainer.precision", "bf16-mixed"], result="val_loss"),
    Technique(
        "optimizer", "choice of the optimizer: SGD, AdamW", "optimizer: AdamW", MLP,
        ["--optimizer", "SGD", "--optimizer.lr", "0.01", "--optimizer.momentum", "0.9"], ["--optimizer", "AdamW", "--optimizer.lr", "0.001"],
    ),
    gpu("cudnn_benchmark", "cudnn.benchmark", "trainer.benchmark: true", CNN, ["--trainer.benchmark", "false"], ["--trainer.benchmark", "true"]),
    gpu(
        "transfers", "fewer blocking transfers", "no transfer hook of your own", NET,
        ["--model", "TechniqueNetOwnTransfer"], [], always=True, note="off: batches are not copied ahead of time",
    ),
    Technique(
        "activation_checkpointing", "activation checkpointing", "model.init_args.activation_checkpointing: all", GPT,
        ["--model.activation_checkpointing", "none"], ["--model.activation_checkpointing", "all"], result="val_loss",
    ),
    Technique(
        "accumulation", "gradient accumulation: 1 x 32, 4 x 8", "trainer.accumulate_grad_batches: 4", GPT,
        ["--data.batch_size", "32", "--trainer.limit_train_batches", "2", "--data.samples_per_epoch", "64", "--data.eval_batch_size", "8"],
        [
            "--data.batch_size", "8", "--trainer.limit_train_batches", "8", "--data.samples_per_epoch", "64", "--data.eval_batch_size", "8",
            "--trainer.accumulate_grad_batches", "4",
        ],
        result="val_loss", note="the same steps on the same samples",
    ),
    Technique(
        "ddp", "DDP, 2 processes", "trainer: {strategy: ddp, devices: 2}", CNN,
        [], ["--trainer.strategy", "ddp", "--trainer.devices", "2", "--data.batch_size", "64"],
        note="as many steps on as many samples; memory is that of the larger process",
    ),
    Technique(
        "dp", "DP, 2 devices of one process", "trainer: {accelerator: virtual, devices: 2, strategy: dp}", CNN,
        VIRTUAL, [*VIRTUAL, "--trainer.strategy", "dp", "--trainer.devices", "2"],
        note="on simulated devices, which compute with the CPU's kernels; off: one of them; memory is that of the fuller device",
    ),
    Technique(
        "set_to_none", "gradients set to none", "always", SMALL_NET,
        ["--model.zero_gradients", "true"], ["--model.zero_gradients", "false"], always=True, note="off: a module's `optimizer_zero_grad` fills them with zeros",
    ),
    Technique(
        "zero_copy", "tensors without a copy (`from_blob`)", "at::from_blob in a data module", OWN_BUFFER,
        ["--data.copy", "true"], ["--data.copy", "false"], result="train_loss",
    ),
    Technique(
        "debug_off", "debug switches off", "trainer.detect_anomaly: false", MLP,
        *(["--trainer.max_epochs", "1", "--trainer.limit_train_batches", "100", "--trainer.detect_anomaly", on] for on in ("true", "false")),
    ),
    Technique("clipping", "gradient clipping", "trainer.gradient_clip_val: 1.0", MLP, [], ["--trainer.gradient_clip_val", "1.0"]),
    Technique(
        "no_bias", "no bias before BatchNorm", "in the module; CnnClassifier always", NET,
        ["--model.bias", "true"], ["--model.bias", "false"], always=True,
    ),
    Technique(
        "validation_gradients", "no gradients in validation", "always", VALIDATION,
        ["--model.validation_gradients", "true", "--trainer.inference_mode", "false"], ["--trainer.inference_mode", "false"],
        always=True, note="off: a module switches them on in `validation_step`",
    ),
    Technique(
        "inference_mode", "inference mode in place of no_grad", "trainer.inference_mode: true", VALIDATION,
        ["--trainer.inference_mode", "false"], ["--trainer.inference_mode", "true"],
    ),
    Technique(
        "normalize", "normalised input", "data.init_args.normalize: true", MLP,
        ["--data.normalize", "false", "--trainer.max_epochs", "2"], ["--data.normalize", "true", "--trainer.max_epochs", "2"],
    ),
    Technique(
        "no_item", "no .item() per step", "log() in place of .item()", SMALL_NET,
        ["--model.item_per_step", "true"], ["--model.item_per_step", "false"], always=True, note="off: `training_step` calls it",
    ),
    Technique(
        "model_parallel", "model parallelism, 2 devices", "trainer.strategy: {class_path: model_parallel, init_args: {placement: {encoder: 0, decoder: 1}, micro_batches: 4}}",
        AUTOENCODER, VIRTUAL,
        [*VIRTUAL, "--trainer.devices", "2", "--trainer.strategy", "model_parallel", "--trainer.strategy.placement.encoder", "0", "--trainer.strategy.placement.decoder", "1", "--trainer.strategy.micro_batches", "4"],
        result="val_loss", note="on simulated devices; off: one of them; device memory is that of the fuller one",
    ),
    Technique(
        "hybrid", "hybrid parallelism, 4 devices", "trainer.strategy: {class_path: hybrid, init_args: {placement: {encoder: [0..1], decoder: [2..3]}, micro_batches: 2}}",
        AUTOENCODER, VIRTUAL,
        [*VIRTUAL, "--trainer.devices", "4", "--trainer.strategy", "hybrid", "--trainer.strategy.placement.encoder", "[0..1]", "--trainer.strategy.placement.decoder", "[2..3]", "--trainer.strategy.micro_batches", "2"],
        result="val_loss", note="on simulated devices; off: one of them; device memory is that of the fullest",
    ),
    Technique("channels_last", "channels last", "trainer.memory_format: channels_last", NET, [], ["--trainer.memory_format", "channels_last"]),
    Technique(
        "matmul_precision", "float32_matmul_precision", "trainer.float32_matmul_precision: medium", GPT,
        [], ["--trainer.float32_matmul_precision", "medium"], result="val_loss",
    ),
    Technique(
        "keep_freed_memory", "malloc keeps freed memory", "trainer.allocator.keep_freed_memory: true", CNN,
        ["--trainer.allocator.keep_freed_memory", "false"], ["--trainer.allocator.keep_freed_memory", "true"],
    ),
    gpu("capture", "capture", "trainer.capture: true", MLP, [], ["--trainer.capture", "true"]),
    Technique("deterministic", "deterministic algorithms", "trainer.deterministic: true", CNN, [], ["--trainer.deterministic", "true"]),
    Technique(
        "async_checkpoint", "checkpoints written behind training", "trainer.async_checkpoint: true", MLP,
        *(
            [
                "--model.hidden", "[1024, 1024]", "--trainer.max_epochs", "1", "--trainer.limit_train_batches", "100", "--trainer.enable_checkpointing", "true",
                "--trainer.callbacks+=ModelCheckpoint", "--trainer.callbacks.every_n_train_steps", "25", "--trainer.async_checkpoint", on,
            ]
            for on in ("false", "true")
        ),
        note="a checkpoint of 22 MB each 25 steps",
    ),
]  # fmt: skip
