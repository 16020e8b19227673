"""Typical work of PyTorch on a GPU. Prints one JSON object: name → [value, unit].

`vgpu-bench --driver=nvidia pytorch` runs this program directly and in a VM.
"""

import json
import time

START = time.perf_counter()
import torch  # noqa: E402

FIGURES = {}


def seconds(work, times):
    """The median time of `times` runs of `work`, each with a synchronisation."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    samples = []
    for _ in range(times):
        begin = time.perf_counter()
        work()
        torch.cuda.synchronize()
        samples.append(time.perf_counter() - begin)
    return sorted(samples)[len(samples) // 2]


def repeated(work, times):
    """Runs `work` several times without a synchronisation between."""

    def all_of_them():
        for _ in range(times):
            work()

    return all_of_them


def start():
    torch.ones(1, device="cuda").item()
    FIGURES["import_to_first_result"] = [time.perf_counter() - START, "s"]


def products():
    size, times = 8192, 10
    left, right = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    taken = seconds(repeated(lambda: left @ right, times), 5) / times
    FIGURES["matmul_8192_bf16"] = [2 * size**3 / taken / 1e12, "TFLOP/s"]


def small_operations():
    """Operations of a few microseconds: their launches are the cost."""
    times, values = 2000, torch.ones(1024, device="cuda")
    taken = seconds(repeated(lambda: values.add_(1), times), 5) / times
    FIGURES["add_1024"] = [taken * 1e6, "us"]
    FIGURES["add_and_item"] = [seconds(lambda: values.sum().item(), 300) * 1e6, "us"]


def copies():
    bytes_, gib = 256 << 20, (256 << 20) / 1e9
    device = torch.empty(bytes_, dtype=torch.uint8, device="cuda")
    for name, host in (
        ("pageable", torch.ones(bytes_, dtype=torch.uint8)),
        ("pinned", torch.ones(bytes_, dtype=torch.uint8).pin_memory()),
    ):
        to_device = seconds(lambda host=host: device.copy_(host, non_blocking=True), 5)
        FIGURES[f"copy_to_device_{name}"] = [gib / to_device, "GB/s"]
        to_host = seconds(lambda host=host: host.copy_(device, non_blocking=True), 5)
        FIGURES[f"copy_to_host_{name}"] = [gib / to_host, "GB/s"]


def steps(name, net, data, target, loss_of, times):
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)

    def step():
        optimizer.zero_grad()
        loss_of(net(data), target).backward()
        optimizer.step()

    FIGURES[name] = [times / seconds(repeated(step, times), 5), "1/s"]


def training():
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 26 * 26, 64),
        torch.nn.ReLU(), torch.nn.Linear(64, 10),
    ).cuda()
    data, target = torch.randn(64, 1, 28, 28, device="cuda"), torch.randint(10, (64,), device="cuda")
    steps("training_step_small", net, data, target, torch.nn.functional.cross_entropy, 50)

    layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0.0, batch_first=True)
    net = torch.nn.TransformerEncoder(layer, 6).cuda().to(torch.bfloat16)
    data = torch.randn(16, 512, 1024, device="cuda", dtype=torch.bfloat16)
    steps("training_step_transformer", net, data, data, torch.nn.functional.mse_loss, 10)

    net.eval()
    one = torch.randn(1, 32, 1024, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        FIGURES["inference_batch_1"] = [seconds(lambda: net(one), 50) * 1e6, "us"]


def graphs():
    values = torch.ones(1024, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(100):
            values.add_(1)
    times = 100
    FIGURES["graph_of_100_kernels"] = [seconds(repeated(graph.replay, times), 5) / times * 1e6, "us"]


for measure in (start, products, small_operations, copies, training, graphs):
    measure()
print(json.dumps(FIGURES))
