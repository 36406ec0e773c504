package capability

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/forgeyard/forgeyard-node/job"
)

// board is a machine with two cards of different vendors, a small board's own processor, a
// screen's adapter that cannot compute, and a card that only its vendor's driver shows: as the
// kernel and the drivers lay them out.
func board(t *testing.T) graphics {
	t.Helper()
	root := t.TempDir()
	at := graphics{drm: filepath.Join(root, "drm"), nvidia: filepath.Join(root, "nvidia"), smi: filepath.Join(root, "smi")}
	pci := func(node, bus, vendor, device, driver string) string {
		dev := filepath.Join(root, "devices", bus)
		write(t, filepath.Join(dev, "uevent"), "DRIVER="+driver+"\nPCI_CLASS=30000\nPCI_SLOT_NAME="+bus+"\n")
		write(t, filepath.Join(dev, "vendor"), vendor+"\n")
		write(t, filepath.Join(dev, "device"), device+"\n")
		link(t, dev, filepath.Join(at.drm, node, "device"))
		return dev
	}
	pci("renderD128", "0000:01:00.0", "0x10de", "0x27b8", "nvidia")
	amd := pci("renderD129", "0000:03:00.0", "0x1002", "0x73bf", "amdgpu")
	write(t, filepath.Join(amd, "mem_info_vram_total"), "17163091968\n")
	pci("card2", "0000:04:00.0", "0x1a03", "0x2000", "ast") // no render node
	soc := filepath.Join(root, "devices", "soc")
	write(t, filepath.Join(soc, "uevent"), "DRIVER=panfrost\nOF_FULLNAME=/soc/GPU@fb000000\nOF_COMPATIBLE_0=arm,mali-g610\n")
	link(t, soc, filepath.Join(at.drm, "renderD130", "device"))
	write(t, filepath.Join(at.nvidia, "0000:05:00.0", "information"), "Model: \t\t Tesla T4\nIRQ:   \t\t 42\n")
	return at
}

func link(t *testing.T, to, at string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(to, at); err != nil {
		t.Fatal(err)
	}
}

// RA-101: what the kernel and the vendors' tools show of graphics processors. No machine that
// these tests run on has one: the trees are made as drivers lay them out.
func TestGPUs(t *testing.T) {
	at := board(t)
	small := job.GPU{Bus: "/soc/gpu@fb000000", Driver: "panfrost", Model: "arm,mali-g610"}
	amd := job.GPU{Bus: "0000:03:00.0", Vendor: "amd", Driver: "amdgpu", Model: "0x73bf", Memory: 17163091968}
	l4 := job.GPU{Bus: "0000:01:00.0", Vendor: "nvidia", Driver: "nvidia", Model: "0x27b8"}
	t4 := job.GPU{Bus: "0000:05:00.0", Vendor: "nvidia", Driver: "nvidia", Model: "Tesla T4"}
	same := func(want ...job.GPU) {
		t.Helper()
		got := gpus(t.Context(), at, nil)
		if len(got) != len(want) {
			t.Fatalf("%+v", got)
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("%+v, not %+v", got[i], want[i])
			}
		}
	}
	same(small, l4, amd, t4) // the tool is not there
	tool := "#!/bin/sh\n[ \"$1\" = --query-gpu=pci.bus_id,name,memory.total ] || exit 9\necho '00000000:01:00.0, NVIDIA L4, 23034'\necho '00000000:05:00.0, Tesla T4, [N/A]'\necho '00000000:09:00.0, another, 1'\necho broken\n"
	write(t, at.smi, tool)
	if err := os.Chmod(at.smi, 0o755); err != nil {
		t.Fatal(err)
	}
	l4.Model, l4.Memory = "NVIDIA L4", 23034<<20
	same(small, l4, amd, t4)
	// RA-112: one that goes away is not there any more, and the digest says so.
	with := Digest(job.Capabilities{GPUs: gpus(t.Context(), at, nil)})
	if err := os.Remove(filepath.Join(at.drm, "renderD129", "device")); err != nil {
		t.Fatal(err)
	}
	same(small, l4, t4)
	if Digest(job.Capabilities{GPUs: gpus(t.Context(), at, nil)}) == with {
		t.Error("another machine has the same digest")
	}
	if got := gpus(t.Context(), graphics{drm: "/nonexistent", nvidia: "/nonexistent"}, nil); got != nil {
		t.Errorf("%+v of a machine that shows nothing", got)
	}
}

// A tool that answers at one probe and is too slow at the next makes no other machine: what it
// said holds while the same processors are there, and for those that stay.
func TestVendorsWordIsKept(t *testing.T) {
	at, known := board(t), &Graphics{}
	tool := func(script string) {
		t.Helper()
		write(t, at.smi, "#!/bin/sh\n"+script)
		if err := os.Chmod(at.smi, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	memory := func() int64 {
		for _, g := range gpus(t.Context(), at, known) {
			if g.Bus == "0000:01:00.0" {
				return g.Memory
			}
		}
		return -1
	}
	tool("exit 1\n")
	if got := memory(); got != 0 {
		t.Fatalf("nobody said that it has %d", got)
	}
	tool("echo '00000000:01:00.0, NVIDIA L4, 23034'\n")
	if got := memory(); got != 23034<<20 {
		t.Fatalf("it was asked once, without an answer, and not again: %d", got)
	}
	before := Digest(job.Capabilities{GPUs: gpus(t.Context(), at, known)})
	tool("exit 1\n")
	if got := Digest(job.Capabilities{GPUs: gpus(t.Context(), at, known)}); got != before {
		t.Error("it is another machine")
	}
	if err := os.Remove(filepath.Join(at.drm, "renderD129", "device")); err != nil {
		t.Fatal(err)
	}
	if got := memory(); got != 23034<<20 {
		t.Errorf("another processor is gone, and this one has %d", got)
	}
	tool("echo '00000000:01:00.0, NVIDIA L4, 1'\n")
	if got := memory(); got != 1<<20 {
		t.Errorf("it is not asked about what is there now: %d", got)
	}
}
