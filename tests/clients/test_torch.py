"""Typical uses of PyTorch on a GPU, one per test. Each test runs in a separate process.

PyTorch's wheels carry machine code only, which a software device does not run: its kernels do nothing there
(SOFT_GPU_SASS=skip), and what they should have computed is missing. There, these tests compare values only where no
kernel made them; the harness compares what reached the device directly and through the line. On a GPU, `agrees`
compares what kernels computed with what the CPU computes.
"""

import os
import re
import subprocess
import sys
import tempfile

import pytest


def torch_with(allocator=""):
    """PyTorch with settings of its allocator, which PyTorch reads only once."""
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = allocator
    os.environ["PYTORCH_ALLOC_CONF"] = allocator
    import torch

    torch.manual_seed(1)
    torch.cuda.init()
    return torch


@pytest.fixture
def torch():
    return torch_with()


def computes():
    """Whether the device runs PyTorch's kernels. The harness sets the variable if the device is a software
    device, which does not."""
    return not os.environ.get("VGPU_NVRTC_PTX")


def agrees(have, wanted, **tolerance):
    """Compares results of GPU and CPU; on a software device, which does not compute, only the
    shape."""
    have = have.detach().cpu()
    assert have.shape == wanted.shape
    if computes():
        import torch

        torch.testing.assert_close(have, wanted.detach(), **tolerance)


def model(torch, width=64):
    nn = torch.nn
    return nn.Sequential(nn.Linear(width, 128), nn.LayerNorm(128), nn.GELU(), nn.Dropout(0.1), nn.Linear(128, 10)).cuda()


def step(torch, net, optimizer, rows=16, width=64):
    return step_on(torch, net, optimizer, torch.ones(rows, width).cuda(), torch.arange(rows).remainder(10).cuda())


def step_on(torch, net, optimizer, inputs, wanted):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(net(inputs), wanted)
    loss.backward()
    optimizer.step()
    return loss


def test_tensors_there_and_back(torch):
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64):
        there = torch.arange(3000).remainder(2).to(dtype)
        assert torch.equal(there.cuda().cpu(), there)
    rows = torch.arange(1 << 20, dtype=torch.int32).reshape(1024, 1024)
    assert torch.equal(rows.cuda()[100:200].cpu(), rows[100:200])
    copied = rows.cuda().clone()
    assert torch.equal(copied.cpu(), rows)
    # In PyTorch 2.10, a kernel fills this.
    assert torch.zeros(5000, device="cuda").cpu().shape == (5000,)
    assert bytes(rows.cuda().untyped_storage().cpu()[:8]) == bytes([0, 0, 0, 0, 1, 0, 0, 0])


def test_device_is_described(torch):
    assert torch.cuda.is_available() and torch.cuda.device_count() == 1
    properties = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info()
    assert properties.name and 0 < free <= total
    torch.cuda.synchronize()


def test_nvml_is_the_vm_s(torch):
    if not os.environ.get("VGPU_ADDRESS"):
        pytest.skip("software devices have no NVML of their own, and a host's own is not ours")
    import pynvml

    torch.cuda.synchronize()
    assert 0 <= torch.cuda.utilization(0) <= 100
    assert torch.cuda.memory_usage(0) == 0
    assert 0 <= torch.cuda.device_memory_used(0) <= torch.cuda.mem_get_info()[1]
    processes = torch.cuda.list_gpu_processes(0).splitlines()
    assert processes[0] == "GPU:0" and any(f" {os.getpid()} uses " in line for line in processes), processes
    for sensor in (torch.cuda.temperature, torch.cuda.power_draw, torch.cuda.clock_rate):
        with pytest.raises(pynvml.NVMLError_NotSupported):
            sensor(0)


def test_elementwise_and_reductions(torch):
    def function(a, b):
        c = (a + b).relu().exp().sum(0).softmax(0)
        return torch.where(c > 0, c, -c).cumsum(0).sort().values

    a, b = torch.rand(100, 100), torch.rand(100, 1)
    there = function(a.cuda(), b.cuda())
    agrees(there, function(a, b))
    # A software device computes nothing here, but item() must succeed.
    there.argmax().item(), torch.cat([there, there]).mean().item()
    agrees(a.cuda().masked_fill(a.cuda() > 0.5, 0), a.masked_fill(a > 0.5, 0))
    if computes():
        # A kernel counts the elements, and the program allocates as many.
        agrees(a.cuda()[a.cuda() > 0.5], a[a > 0.5])
    torch.randn(1000, device="cuda").topk(5)
    agrees(torch.arange(100, device="cuda").index_select(0, torch.tensor([1, 2]).cuda()), torch.tensor([1, 2]))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_matmul(torch, dtype):
    dtype = getattr(torch, dtype)
    # Small whole numbers: sums are exact in every type.
    left, right = (torch.arange(n * m).reshape(n, m).remainder(k) for n, m, k in ((128, 256, 2), (256, 64, 3)))
    left, right = left.to(dtype), right.to(dtype)
    a, b = left.cuda(), right.cuda()
    agrees(a @ b, left @ right)
    batched = torch.bmm(a.expand(4, 128, 256), b.expand(4, 256, 64))
    agrees(batched, (left @ right).expand(4, 128, 64))
    torch.addmm(torch.ones(64, dtype=dtype).cuda(), a, b)
    torch.mv(a, torch.ones(256, dtype=dtype).cuda())
    torch.nn.functional.linear(a, b.t().contiguous(), torch.ones(64, dtype=dtype).cuda()).cpu()


def test_matmul_with_tf32(torch):
    torch.backends.cuda.matmul.allow_tf32 = True
    a = torch.arange(256 * 256).reshape(256, 256).remainder(5).float()
    agrees(a.cuda() @ a.cuda(), a @ a)


def test_linear_algebra(torch):
    matrix = torch.eye(32) * 4 + 1
    a, wanted = matrix.cuda(), torch.ones(32, 1)
    for solve in (torch.linalg.cholesky_ex, torch.linalg.qr, torch.linalg.lu_factor_ex):
        solve(a)
    agrees(torch.linalg.solve_ex(a, (matrix @ wanted).cuda()).result, wanted)
    torch.triangular_solve(torch.ones(32, 1).cuda(), a)


@pytest.mark.parametrize("form", [1, 2, 3])
def test_conv(torch, form):
    nn = torch.nn
    kinds = [(nn.Conv1d, nn.ConvTranspose1d), (nn.Conv2d, nn.ConvTranspose2d), (nn.Conv3d, nn.ConvTranspose3d)]
    conv, back = kinds[form - 1]
    conv, back = conv(8, 16, 3, padding=1), back(16, 8, 3, padding=1)

    def gradient(conv, back, inputs):
        inputs.requires_grad_()
        back(conv(inputs)).sum().backward()
        return inputs.grad

    inputs = torch.rand(2, 8, *[16] * form)
    wanted = gradient(conv, back, inputs.clone())
    # cuDNN may multiply in tf32.
    agrees(gradient(conv.cuda(), back.cuda(), inputs.cuda()), wanted, rtol=1e-2, atol=1e-2)


def test_conv_of_halves_with_batch_norm_and_pooling(torch):
    nn = torch.nn
    net = nn.Sequential(nn.Conv2d(8, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1))
    net = net.cuda().half().to(memory_format=torch.channels_last)
    inputs = torch.ones(4, 8, 32, 32).half().cuda().to(memory_format=torch.channels_last)
    net(inputs).sum().backward()
    assert net[0].weight.grad.cpu().shape == net[0].weight.shape


def test_lstm(torch):
    net, inputs = torch.nn.LSTM(16, 32, 2), torch.rand(5, 3, 16)
    wanted, _ = net(inputs)
    output, _ = net.cuda()(inputs.cuda())
    output.sum().backward()
    agrees(output, wanted, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("backend", ["MATH", "EFFICIENT_ATTENTION", "FLASH_ATTENTION", "CUDNN_ATTENTION"])
def test_attention(torch, backend):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    attention = torch.nn.functional.scaled_dot_product_attention
    inputs = [torch.rand(2, 4, 64, 64) for _ in range(3)]
    query, key, value = (part.half().cuda().requires_grad_() for part in inputs)
    with sdpa_kernel(getattr(SDPBackend, backend)):
        out = attention(query, key, value, is_causal=True)
        out.sum().backward()
    agrees(out.float(), attention(*inputs, is_causal=True), rtol=1e-2, atol=1e-2)
    assert query.grad.cpu().shape == query.shape


def test_multihead_attention(torch):
    net = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).cuda()
    net(torch.ones(2, 16, 64).cuda()).sum().backward()
    net.eval()
    with torch.inference_mode():
        assert net(torch.ones(2, 16, 64).cuda()).cpu().shape == (2, 16, 64)


def test_fft(torch):
    here = torch.rand(64, 128)
    a = here.cuda()
    agrees(torch.fft.irfft(torch.fft.rfft(a)), here)
    agrees(torch.fft.fft2(a), torch.fft.fft2(here), rtol=1e-4, atol=1e-3)
    torch.fft.fftn(torch.ones(8, 12, 20, dtype=torch.complex128).cuda()).cpu()
    torch.stft(torch.ones(4000).cuda(), 256, window=torch.hann_window(256).cuda(), return_complex=True).cpu()


def test_sparse(torch):
    right = torch.rand(64, 8)
    a = torch.eye(64).to_sparse_csr().cuda()
    agrees(a @ right.cuda(), right)


def test_nvrtc(torch):
    kernel = torch.cuda.jiterator._create_jit_fn("template <typename T> T twice(T x) { return x + x; }")
    assert torch.equal(kernel(torch.ones(100).cuda()).cpu(), torch.full((100,), 2.0))


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "fused-AdamW", "capturable-Adam"])
def test_training_step(torch, optimizer):
    net = model(torch).eval()
    *how, name = optimizer.split("-")
    optimizer = getattr(torch.optim, name)(net.parameters(), lr=0.01, **{word: True for word in how})
    losses = [step(torch, net, optimizer).detach() for _ in range(5)]
    # A step follows the gradient: on a GPU, the loss decreases.
    agrees((losses[-1] < losses[0]).cpu(), torch.tensor(True))
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)


def train(steps):
    torch = torch_with()
    net = model(torch)
    optimizer = torch.optim.AdamW(net.parameters())
    # The copies of the data to the device wait, so there is only one.
    data = torch.ones(16, 64).cuda(), torch.arange(16).remainder(10).cuda()
    for _ in range(steps):
        step_on(torch, net, optimizer, *data)
    torch.cuda.synchronize()


def test_a_training_step_waits_for_nothing():
    """In a VM, a program that trains for more steps makes no more calls that wait for the host."""

    def waits(steps):
        train = [sys.executable, "-c", f"import test_torch; test_torch.train({steps})"]
        done = subprocess.run(train, cwd=os.path.dirname(__file__), env={**os.environ, "VGPU_STATS": "1"},
                              stderr=subprocess.PIPE, text=True, check=True)
        return re.findall(r"^vgpu: +sync +(\d+)$", done.stderr, re.MULTILINE)

    few, many = waits(5), waits(25)
    assert few == many
    assert len(few) == (1 if os.environ.get("VGPU_ADDRESS") else 0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_amp(torch, dtype):
    net = model(torch)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", enabled=dtype == "float16")
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=getattr(torch, dtype)):
            loss = net(torch.ones(16, 64).cuda()).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def compiled(torch, function, **how):
    import torch._inductor.config as config
    from torch._inductor.runtime.benchmarking import benchmarker

    def once(fn, **how):
        fn()
        return 1.0

    config.compile_threads = 1
    config.force_disable_caches = True
    # Whether Inductor tries padded products depends on clock rates of NVML, which software devices have only in a VM.
    config.shape_padding = False
    # Inductor measures candidate kernels and takes the fastest, which differs between runs of a
    # program. Here each kernel runs once, and the first is taken.
    benchmarker.benchmark_gpu = once
    return torch.compile(function, **how)


def test_compile(torch):
    def function(a, b):
        return (a * b + 1).relu(), (a - b).sum(1), torch.softmax(a, 1)

    a = torch.arange(64 * 100).reshape(64, 100).remainder(7).float()
    b = torch.arange(64 * 100).reshape(64, 100).remainder(5).float()
    # Triton's kernels are PTX here, so they are computed.
    for have, wanted in zip(compiled(torch, function)(a.cuda(), b.cuda()), function(a, b)):
        assert torch.allclose(have.cpu(), wanted)


def test_compiled_training_step(torch):
    net = model(torch)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net = compiled(torch, net)
    for _ in range(3):
        step(torch, net, optimizer).item()


def test_compile_with_cuda_graphs(torch):
    function = compiled(torch, lambda a: (a + 1) * 2, mode="reduce-overhead")
    for _ in range(4):
        # PyTorch's own kernels copy the input to the address in the graph.
        assert function(torch.ones(1000).cuda()).cpu().shape == (1000,)


def test_cuda_graph(torch):
    net, inputs = model(torch).eval(), torch.ones(16, 64).cuda()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.no_grad():
        for _ in range(3):
            net(inputs)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        output = net(inputs)
    for value in range(3):
        inputs.copy_(torch.full((16, 64), float(value)))
        graph.replay()
    assert output.cpu().shape == (16, 10)


def test_cuda_graph_of_a_training_step(torch):
    net = model(torch)
    graphed = torch.cuda.make_graphed_callables(net, (torch.ones(16, 64, device="cuda", requires_grad=True),))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        step(torch, graphed, optimizer)
    torch.cuda.synchronize()


def test_streams_and_events(torch):
    first, second = torch.cuda.Stream(), torch.cuda.Stream(priority=-1)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    a = torch.ones(1000, 1000)
    with torch.cuda.stream(first):
        start.record()
        b = a.cuda()
        end.record()
    second.wait_event(end)
    with torch.cuda.stream(second):
        c = b.clone()
        c.record_stream(second)
    second.synchronize()
    end.synchronize()
    assert start.elapsed_time(end) >= 0 and end.query() and second.query()
    assert torch.equal(c.cpu(), a)
    first.wait_stream(second)
    torch.cuda._sleep(1000)
    torch.cuda.synchronize()


def test_pinned_and_non_blocking_copies(torch):
    pinned = torch.arange(1 << 20, dtype=torch.int32).pin_memory()
    assert pinned.is_pinned()
    there = pinned.to("cuda", non_blocking=True)
    back = torch.empty_like(pinned, pin_memory=True)
    back.copy_(there, non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(back, pinned)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        part = pinned[1000:2000].cuda(non_blocking=True)
    stream.synchronize()
    assert torch.equal(part.cpu(), pinned[1000:2000])
    kept, cudart = torch.ones(4096 * 4), torch.cuda.cudart()
    assert int(cudart.cudaHostRegister(kept.data_ptr(), 4096, 0)) == 0
    assert int(cudart.cudaHostUnregister(kept.data_ptr())) == 0


class Rows:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        import torch

        return torch.full((32,), float(index)), index % 10


def test_data_loader(torch):
    loader = torch.utils.data.DataLoader(Rows(), batch_size=8, num_workers=2, pin_memory=True)
    seen = 0
    for inputs, _ in loader:
        assert inputs.is_pinned()
        there = inputs.cuda(non_blocking=True)
        assert torch.equal(there.cpu(), inputs)
        seen += len(inputs)
    assert seen == 64


def use_memory(torch):
    kept = [torch.ones(size).cuda() for size in (10, 5000, 1 << 20, 3 << 20, 40 << 20)]
    for size in (1 << 18, 5 << 20, 20 << 20):
        torch.empty(size, device="cuda").copy_(torch.ones(size))
    assert torch.cuda.memory_allocated() > 0
    del kept[2:4]
    torch.cuda.empty_cache()
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 42, dtype=torch.uint8, device="cuda")
    assert torch.equal(torch.ones(30 << 20).cuda()[-5:].cpu(), torch.ones(5))
    assert torch.cuda.memory_summary()
    torch.cuda.synchronize()


def test_caching_allocator(torch):
    use_memory(torch)
    assert torch.cuda.memory_stats()["num_ooms"] == 1
    with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
        torch.ones(1000).cuda()


def test_cuda_malloc_async():
    torch = torch_with("backend:cudaMallocAsync")
    assert torch.cuda.get_allocator_backend() == "cudaMallocAsync"
    use_memory(torch)
    step(torch, net := model(torch), torch.optim.SGD(net.parameters(), lr=0.1))


def test_expandable_segments():
    torch = torch_with("expandable_segments:True")
    use_memory(torch)
    step(torch, net := model(torch), torch.optim.SGD(net.parameters(), lr=0.1))


def test_checkpoint(torch):
    net = model(torch)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    step(torch, net, optimizer)
    with tempfile.NamedTemporaryFile() as file:
        torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, file.name)
        kept = torch.load(file.name, map_location="cuda", weights_only=True)
        other = model(torch)
        other.load_state_dict(kept["net"])
        optimizer.load_state_dict(torch.load(file.name, weights_only=True)["optimizer"])
    for name, value in net.state_dict().items():
        assert torch.equal(other.state_dict()[name].cpu(), value.cpu()), name


def test_activation_checkpointing(torch):
    from torch.utils.checkpoint import checkpoint

    net, inputs = model(torch), torch.ones(4, 64).cuda().requires_grad_()
    checkpoint(net, inputs, use_reentrant=False).sum().backward()
    assert inputs.grad.cpu().shape == (4, 64)


def test_nccl_on_one_rank(torch):
    import torch.distributed as dist

    with tempfile.NamedTemporaryFile() as file:
        dist.init_process_group("nccl", init_method=f"file://{file.name}.rank", rank=0, world_size=1)
        a = torch.arange(1000.0).cuda()
        dist.all_reduce(a)
        dist.broadcast(a, 0)
        parts = [torch.empty(1000).cuda()]
        dist.all_gather(parts, a)
        dist.barrier()
        assert torch.equal(parts[0].cpu(), torch.arange(1000.0))
        net = torch.nn.parallel.DistributedDataParallel(model(torch), device_ids=[0])
        step(torch, net, torch.optim.SGD(net.parameters(), lr=0.1))
        torch.cuda.synchronize()
        dist.destroy_process_group()
