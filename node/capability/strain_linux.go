package capability

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forgeyard/forgeyard-node/internal/invariant"
	"github.com/forgeyard/forgeyard-node/node/pressure"
)

// Strain reads what this machine feels. What it does not tell stays unknown.
func Strain() pressure.Sample {
	s := strain("/proc/pressure", "/sys/class/thermal", "/proc/stat")
	s.Own = own()
	return s
}

func strain(psi, thermal, stat string) (s pressure.Sample) {
	var cpu, mem, io bool
	s.CPU, cpu = stall(filepath.Join(psi, "cpu"), "some")
	s.Memory, mem = stall(filepath.Join(psi, "memory"), "full")
	s.IO, io = stall(filepath.Join(psi, "io"), "full")
	s.HasStall = cpu && mem && io
	s.Heat, s.HasHeat = heat(thermal)
	s.Busy = busy(stat)
	return s
}

// own is what this process has worked. Its children count elsewhere.
func own() time.Duration {
	var u unix.Rusage
	invariant.NoError(unix.Getrusage(unix.RUSAGE_SELF, &u), "a process can ask what it used")
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// tick is the unit of /proc/stat: 1/USER_HZ, the same on all machines.
const tick = 10 * time.Millisecond

// busy reads what all processors have worked, from a line such as
// `cpu  user nice system idle iowait irq softirq steal guest guest_nice`. What is stolen is
// used by others too; guests are in user already. Zero: it cannot be read.
func busy(file string) (d time.Duration) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(b), "\n")
	f := strings.Fields(line)
	if len(f) < 9 || f[0] != "cpu" {
		return 0
	}
	for i, text := range f[1:9] {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 {
			return 0
		}
		if idle := i == 3 || i == 4; !idle {
			d += time.Duration(n) * tick
		}
	}
	return d
}

// stall reads the share of the last ten seconds, in percent, from a line such as
// `full avg10=0.12 avg60=0.00 avg300=0.00 total=0`.
func stall(file, kind string) (percent float64, known bool) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != kind {
			continue
		}
		v, ok := strings.CutPrefix(f[1], "avg10=")
		p, err := strconv.ParseFloat(v, 64)
		return p, ok && err == nil && p >= 0 && p <= 100
	}
	return 0, false
}

// heat is how far the hottest zone is below its first hot or critical trip point, in degrees.
// Passive and active points are fans and quiet throttling, which a busy machine lives with.
func heat(dir string) (below float64, known bool) {
	zones, err := filepath.Glob(filepath.Join(dir, "thermal_zone*"))
	if err != nil {
		return 0, false
	}
	for _, z := range zones {
		temp, ok := number(filepath.Join(z, "temp"))
		kinds, err := filepath.Glob(filepath.Join(z, "trip_point_*_type"))
		if !ok || err != nil {
			continue
		}
		for _, k := range kinds {
			b, err := os.ReadFile(k)
			kind := strings.TrimSpace(string(b))
			if err != nil || kind != "hot" && kind != "critical" {
				continue
			}
			trip, ok := number(strings.TrimSuffix(k, "_type") + "_temp")
			if !ok || trip <= 0 { // a point that the firmware left out
				continue
			}
			if d := float64(trip-temp) / 1000; !known || d < below {
				below, known = d, true
			}
		}
	}
	return below, known
}

func number(file string) (int64, bool) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return n, err == nil
}
