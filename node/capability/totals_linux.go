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
	for _, f := range boundFiles("/sys/fs/cgroup", "/proc/self/cgroup") {
		if v := bound(f); v > 0 && v < t.Memory {
			t.Memory = v
		}
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

// boundFiles names where the kernel keeps memory bounds of the group that the node runs
// in: a container's or a service's.
func boundFiles(root, own string) []string {
	b, err := os.ReadFile(own)
	if err != nil {
		return nil
	}
	var files []string
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(f) != 3:
		case f[0] == "0" && f[1] == "":
			files = append(files, filepath.Join(root, f[2], "memory.max"))
		case f[1] == "memory":
			files = append(files, filepath.Join(root, "memory", f[2], "memory.limit_in_bytes"), filepath.Join(root, "memory", "memory.limit_in_bytes"))
		}
	}
	return files
}

// bound reads one; 0 when there is none ("max", absent, or version 1's huge number,
// which no memory reaches).
func bound(file string) int64 {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return 0
	}
	return n
}
