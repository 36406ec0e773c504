package capability

import (
	"context"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/forgeyard/forgeyard-node/job"
)

// graphics are where a machine shows its graphics processors.
type graphics struct {
	drm    string // class of the kernel's direct rendering: one render node each
	nvidia string // what NVIDIA's own driver shows, which may have no render node
	smi    string // NVIDIA's tool; asked only when one of its processors is there
}

var machineGraphics = graphics{drm: "/sys/class/drm", nvidia: "/proc/driver/nvidia/gpus", smi: "/usr/bin/nvidia-smi"}

// maxGPUs bounds what a machine may say; no board has more.
const maxGPUs = 64

var vendors = map[string]string{"0x10de": "nvidia", "0x1002": "amd", "0x8086": "intel"}

// gpus lists what can compute: a screen's adapter without a render node cannot.
func gpus(ctx context.Context, at graphics, known *Graphics) []job.GPU {
	byBus := map[string]job.GPU{}
	nodes, _ := filepath.Glob(filepath.Join(at.drm, "renderD*")) // its only error is a bad pattern
	for _, n := range nodes {
		if g, ok := rendered(filepath.Join(n, "device")); ok {
			byBus[g.Bus] = g
		}
	}
	own, _ := filepath.Glob(filepath.Join(at.nvidia, "*", "information"))
	for _, f := range own {
		bus := strings.ToLower(filepath.Base(filepath.Dir(f)))
		g := byBus[bus]
		g.Bus, g.Vendor, g.Driver = bus, "nvidia", "nvidia"
		if m := fact(f, "Model:"); m != "" {
			g.Model = m
		}
		byBus[bus] = g
	}
	if slices.ContainsFunc(slices.Collect(maps.Values(byBus)), func(g job.GPU) bool { return g.Driver == "nvidia" }) {
		known.add(ctx, at.smi, byBus)
	}
	var out []job.GPU
	for _, bus := range slices.Sorted(maps.Keys(byBus)) {
		if len(out) < maxGPUs {
			out = append(out, byBus[bus])
		}
	}
	return out
}

// rendered reads what the kernel says of the device behind a render node. One that is no PCI
// device, as on small boards, is named by its place in the device tree.
func rendered(dev string) (job.GPU, bool) {
	if _, err := os.Stat(dev); err != nil {
		return job.GPU{}, false
	}
	event := filepath.Join(dev, "uevent")
	g := job.GPU{Bus: fact(event, "PCI_SLOT_NAME="), Driver: fact(event, "DRIVER="), Model: text(filepath.Join(dev, "product_name"))}
	vendor := text(filepath.Join(dev, "vendor"))
	if g.Vendor = vendors[vendor]; g.Vendor == "" {
		g.Vendor = vendor
	}
	if g.Bus == "" {
		g.Bus = fact(event, "OF_FULLNAME=")
	}
	if g.Model == "" {
		g.Model = fact(event, "OF_COMPATIBLE_0=")
	}
	if g.Model == "" {
		g.Model = text(filepath.Join(dev, "device"))
	}
	g.Memory = plainNumber(filepath.Join(dev, "mem_info_vram_total"))
	g.Bus = strings.ToLower(g.Bus)
	return g, g.Bus != ""
}

// text is a file of one line.
func text(file string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	return short(string(b))
}

// fact is what follows a key at the beginning of a line.
func fact(file, key string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, key); ok {
			return short(v)
		}
	}
	return ""
}

// maxGPUText bounds each word of a processor, which goes into the site's log.
const maxGPUText = 128

func short(s string) string {
	s = strings.TrimSpace(strings.ToValidUTF8(s, ""))
	if len(s) > maxGPUText {
		s = strings.ToValidUTF8(s[:maxGPUText], "")
	}
	return s
}

// gpuWait bounds the vendor's tool, which waits for a driver that hangs.
const gpuWait = 5 * time.Second

// add adds the names and memory that only the vendor's tool tells. It is asked until it has
// answered for the processors that are there, and then not again.
func (k *Graphics) add(ctx context.Context, smi string, byBus map[string]job.GPU) {
	if k == nil {
		k = &Graphics{}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if of := strings.Join(slices.Sorted(maps.Keys(byBus)), " "); k.of != of {
		if said, ok := askVendor(ctx, smi); ok {
			k.of, k.said = of, said
		}
	}
	for bus, said := range k.said {
		g, ok := byBus[bus]
		if !ok {
			continue
		}
		if said.model != "" {
			g.Model = said.model
		}
		if said.memory != 0 {
			g.Memory = said.memory
		}
		byBus[bus] = g
	}
}

// askVendor reads what the tool says of each bus, if it is there and answers:
// "00000000:01:00.0, NVIDIA L4, 23034", in MiB.
func askVendor(ctx context.Context, smi string) (all map[string]vendorSaid, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, gpuWait)
	defer cancel()
	c := exec.CommandContext(ctx, smi, "--query-gpu=pci.bus_id,name,memory.total", "--format=csv,noheader,nounits")
	c.Env, c.Dir, c.WaitDelay = []string{"PATH=" + DefaultPath, "LANG=C"}, "/", time.Second
	out, err := c.Output()
	if err != nil {
		return nil, false
	}
	all = map[string]vendorSaid{}
	for line := range strings.Lines(string(out)) {
		f := strings.Split(line, ",")
		if len(f) != 3 {
			continue
		}
		bus := strings.ToLower(strings.TrimSpace(f[0]))
		if i := len(bus) - len("0000:01:00.0"); i > 0 {
			bus = bus[i:] // it writes the domain with eight digits, the kernel with four
		}
		said := vendorSaid{model: short(f[1])}
		if mib, err := strconv.ParseInt(strings.TrimSpace(f[2]), 10, 64); err == nil && mib > 0 && mib < 1<<30 {
			said.memory = mib << 20
		}
		all[bus] = said
	}
	return all, true
}
