#!/usr/bin/env python3
"""Programs of users, for a GPU: GPT-2, ResNet-18, Triton, CuPy, JAX, and two loads.

    programs.py NAME        runs one; NAME is one of the functions below

Run each directly, and in a VM (LD_LIBRARY_PATH with our libraries, VGPU_ADDRESS). gpt2, resnet18, compiled,
cupy and jax must print the same in both. `products` prints the number of products in eight seconds, for
comparing shares of VMs. `quota` is for a VM of 2 GiB. Times go to standard error. Each program needs the
packages that its function imports.
"""

import os
import sys
import time


def gpt2():
    """Training steps of a small GPT-2 with random weights, and generated tokens."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    sizes = {"n_layer": 4, "n_head": 8, "n_embd": 512, "vocab_size": 5000}
    model = GPT2LMHeadModel(GPT2Config(attn_pdrop=0, embd_pdrop=0, resid_pdrop=0, **sizes)).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(5000, (8, 128), generator=torch.Generator().manual_seed(1)).cuda()
    begin = time.time()
    for _ in range(30):
        loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.2f}")
    print(f"30 steps: {time.time() - begin:.2f} s", file=sys.stderr)
    model.eval()
    made = model.generate(tokens[:1, :8], max_new_tokens=8, do_sample=False, pad_token_id=0)
    print(tuple(made.shape))


def resnet18():
    """Training steps of ResNet-18 in mixed precision."""
    import torch
    import torchvision

    torch.manual_seed(0)
    net = torchvision.models.resnet18(weights=None).cuda().to(memory_format=torch.channels_last).train()
    images = torch.randn(32, 3, 128, 128, generator=torch.Generator().manual_seed(1)).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    begin = time.time()
    for _ in range(20):
        with torch.autocast("cuda", torch.bfloat16):
            loss = net(images).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("the loss is small:", loss.item() < 2)
    print(f"20 steps: {time.time() - begin:.2f} s", file=sys.stderr)


def compiled():
    """A function that Inductor compiles with Triton."""
    import torch

    function = torch.compile(lambda a, b: (torch.relu(a @ b) + 1).sum(0))
    matrix = torch.randn(256, 256, device="cuda")
    wanted = (torch.relu(matrix @ matrix) + 1).sum(0)
    print(torch.allclose(function(matrix, matrix), wanted, rtol=1e-3, atol=1e-2))


def cupy():
    """CuPy's libraries and a raw kernel, compared with NumPy and SciPy."""
    import cupy as cp
    import cupyx.scipy.sparse
    import numpy as np
    import scipy.sparse

    there = cp.random.RandomState(1).rand(512, 512)
    here = cp.asnumpy(there)
    print(np.allclose(cp.asnumpy(there @ there), here @ here))
    print(np.allclose(cp.asnumpy(cp.fft.fft2(there)), np.fft.fft2(here)))
    print(np.allclose(cp.asnumpy(cp.sort(there.ravel())), np.sort(here.ravel())))
    print(np.allclose(cp.asnumpy(cp.linalg.svd(there)[1]), np.linalg.svd(here)[1]))
    kernel = cp.RawKernel('extern "C" __global__ void f(float *x) { x[threadIdx.x] += threadIdx.x; }', "f")
    values = cp.zeros(64, cp.float32)
    kernel((1,), (64,), (values,))
    print(float(values.sum()))
    matrix = scipy.sparse.random(300, 300, 0.05, format="csr", random_state=1)
    product = (cupyx.scipy.sparse.csr_matrix(matrix) @ cp.ones(300)).get()
    print(np.allclose(product, matrix @ np.ones(300)))


def jax():
    """A compiled function and its gradient."""
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import jax
    import jax.numpy as jnp

    matrix = jax.random.normal(jax.random.key(0), (512, 512))
    function = jax.jit(lambda a: jnp.tanh(a @ a.T).sum())
    print(jax.devices()[0].device_kind)
    print(f"{function(matrix):.1f} {jnp.linalg.norm(jax.grad(function)(matrix)):.1f}")


def products():
    """Matrix products for eight seconds, for shares between VMs: prints their number."""
    import torch

    matrix = torch.randn(4096, 4096, device="cuda")
    (matrix @ matrix).sum().item()
    number, begin = 0, time.time()
    while time.time() - begin < 8:
        for _ in range(5):
            matrix @ matrix
        torch.cuda.synchronize()
        number += 5
    print(number)


def quota():
    """More memory than a VM of 2 GiB has."""
    import torch

    try:
        torch.empty(4 << 30, dtype=torch.uint8, device="cuda")
        print("4 GiB were not refused")
    except torch.OutOfMemoryError as error:
        print("refused:", str(error)[:160])
    torch.empty(1 << 30, dtype=torch.uint8, device="cuda").fill_(1)
    print(torch.cuda.mem_get_info())


PROGRAMS = (gpt2, resnet18, compiled, cupy, jax, products, quota)

if __name__ == "__main__":
    chosen = [program for program in PROGRAMS if sys.argv[1:] == [program.__name__]]
    if not chosen:
        sys.exit(f"{__doc__}\nNAME is one of {', '.join(program.__name__ for program in PROGRAMS)}")
    chosen[0]()
