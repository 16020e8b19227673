# Every target is a short command that also works by hand.
# A fresh machine needs Rust, a C compiler and make. Targets install their other tools themselves.
# `cargo run` stands here without `-p`, which would compile dependencies again with other features.
.PHONY: help build demo test bench sim vm-test clients hypervisors fuzz lint loom install deb dist pkg-test release

CARGO ?= cargo

help:
	@echo "make demo      20 guests on two software GPUs, checked"
	@echo "make test      unit, property, model and whole-system tests"
	@echo "make vm-test   real guest VMs under QEMU"
	@echo "make clients   the tests of real CUDA clients, target/clients/report.json (CLIENTS=--ci: briefly)"
	@echo "make hypervisors  the import of VMs and the hooks of libvirt, Incus, Proxmox and CloudStack (Debian: installs virsh, Groovy)"
	@echo "make bench     figures beside their baselines, target/bench/report.json"
	@echo "make sim       the scheduler's bounds, checked in simulation, target/sim/report.json (SIM=--ci: briefly)"
	@echo "make fuzz      libFuzzer targets for bytes of guests, workers, administrators (FUZZ=--ci: briefly; needs a C++ compiler)"
	@echo "make lint      rustfmt, clippy, rustdoc, unused dependencies, our facts of cuda.h and the guests' declarations against NVIDIA's, cargo deny"
	@echo "make install   DESTDIR=/ PREFIX=/usr: binaries, guest library, units, manual pages (builds in release mode)"
	@echo "make deb       Debian packages vgpu-host, vgpu-guest, vgpu-soft-gpu in target/deb (builds in release mode)"
	@echo "make dist      a tarball for other distributions in target/dist (builds in release mode)"
	@echo "make pkg-test  the packages in a Debian root file system: lintian, install, upgrade, purge (needs root; PKG=--ci: briefly)"

build:
	$(CARGO) build --workspace

demo: build
	$(CARGO) run -q --bin vgpu-demo

test: loom
	tests/run.sh

loom:
	RUSTFLAGS="--cfg loom" $(CARGO) test -q -p vgpu-proto --test lease_loom --target-dir target/loom

vm-test: build
	tests/vm/run.sh

clients: build
	$(CARGO) run -q --bin vgpu-clients -- $(CLIENTS)

hypervisors: build
	tests/hypervisors/run.sh

# `cargo run` would compile libraries again, because thin LTO wants them in another form.
bench:
	$(CARGO) build --release --workspace --exclude vgpu-tests
	"$${CARGO_TARGET_DIR:-target}/release/vgpu-bench"

sim:
	$(CARGO) run -q --bin vgpu-sim -- $(SIM)

fuzz:
	tests/fuzz/run.sh $(FUZZ)

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) check -q --no-default-features -p vgpu-guest-shim -p soft-gpu
	$(CARGO) check -q --no-default-features -p vgpu-nvml
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc -q --workspace --no-deps
	tests/unused.sh
	proto/cuda-abi/header-check/run.sh
	tests/deny.sh

install: release
	systemd/install.sh

deb: release
	systemd/deb/build.sh

dist: release
	systemd/dist.sh

pkg-test: build
	tests/packages/run.sh $(PKG)

# Without the programs of tests and benchmarks: thin LTO takes minutes for each program.
release:
	$(CARGO) build --release --workspace --exclude vgpu-tests --exclude vgpu-benches
