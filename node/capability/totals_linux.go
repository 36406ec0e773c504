package capability

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

func totals(dir string) (Totals, error) {
	disk, err := diskTotal(dir)
	if err != nil {
		return Totals{}, err
	}
	// NumCPU follows the affinity mask, which containers and taskset set.
	t := Totals{MilliCPU: int64(runtime.NumCPU()) * 1000, Memory: memTotal("/proc/meminfo"), Disk: disk}
	g := groupOf("/sys/fs/cgroup", "/proc/self/cgroup")
	if b := g.memory(); b > 0 {
		t.Memory = min(t.Memory, b)
	}
	if b := g.milliCPU(); b > 0 {
		t.MilliCPU = min(t.MilliCPU, b)
	}
	return t, nil
}

func memTotal(file string) int64 {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "MemTotal:"); ok {
			f := strings.Fields(v)
			if len(f) == 2 && f[1] == "kB" {
				n, err := strconv.ParseInt(f[0], 10, 64)
				if err == nil {
					return n << 10
				}
			}
		}
	}
	return 0
}

// group is where the kernel keeps the bounds of the control group that the node runs in, a
// container's or a service's, by controller: its folder and those above it, of which each
// binds. What is not there has none.
type group map[string][]string

// unified is the hierarchy that has all controllers.
const unified = ""

// groupOf finds it below a root, by what /proc/self/cgroup says.
func groupOf(root, own string) group {
	b, err := os.ReadFile(own)
	if err != nil {
		return nil
	}
	g := group{}
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		for _, c := range strings.Split(f[1], ",") {
			switch c {
			case unified:
				g[c] = upwards(root, f[2])
			case "memory", "cpu":
				g[c] = upwards(filepath.Join(root, c), f[2])
			}
		}
	}
	return g
}

// upwards lists a folder and all above it, down to the root. In a container the root is the
// container's own group.
func upwards(root, dir string) (out []string) {
	for d := filepath.Clean("/" + dir); ; d = filepath.Dir(d) {
		out = append(out, filepath.Join(root, d))
		if d == "/" {
			return out
		}
	}
}

// memory is the least bound in bytes; 0 when there is none.
func (g group) memory() (least int64) {
	for c, file := range map[string]string{unified: "memory.max", "memory": "memory.limit_in_bytes"} {
		for _, d := range g[c] {
			least = lesser(least, plainNumber(filepath.Join(d, file)))
		}
	}
	return least
}

// milliCPU is the least bound in thousandths of a core; 0 when there is none.
func (g group) milliCPU() (least int64) {
	for _, d := range g[unified] { // "200000 100000": so much in each period, or "max 100000"
		w := words(filepath.Join(d, "cpu.max"))
		if len(w) == 2 {
			least = lesser(least, share(positive(w[0]), positive(w[1])))
		}
	}
	for _, d := range g["cpu"] { // a quota of -1 is none
		least = lesser(least, share(plainNumber(filepath.Join(d, "cpu.cfs_quota_us")), plainNumber(filepath.Join(d, "cpu.cfs_period_us"))))
	}
	return least
}

func share(quota, period int64) int64 {
	if quota == 0 || period == 0 {
		return 0
	}
	return max(quota*1000/period, 1)
}

// lesser is the smaller of two bounds, of which 0 is none.
func lesser(a, b int64) int64 {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

func words(file string) []string {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	return strings.Fields(string(b))
}

// plainNumber reads a file of one number; 0 where there is none ("max", -1, absent). Version 1
// writes no bound of memory as a huge number, which nothing reaches.
func plainNumber(file string) int64 {
	if w := words(file); len(w) == 1 {
		return positive(w[0])
	}
	return 0
}

func positive(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0
	}
	return max(n, 0)
}
