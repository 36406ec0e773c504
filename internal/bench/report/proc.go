package report

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Load is how busy the machine is, by its own word.
func Load() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(b))[:3], " ")
}

// Cost is what a process has taken.
type Cost struct {
	RSS, Peak float64 // bytes
	CPU       time.Duration
}

// ticks a second that /proc counts in: USER_HZ, which is 100 on every Linux that Go runs on.
const userHZ = 100

// CostOf asks the kernel.
func CostOf(pid int) (c Cost, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return c, err
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return c, err
	}
	return parseCost(string(status), string(stat))
}

func parseCost(status, stat string) (c Cost, err error) {
	for line := range strings.Lines(status) {
		f := strings.Fields(line)
		if len(f) != 3 || f[2] != "kB" {
			continue
		}
		kb, err := strconv.ParseFloat(f[1], 64)
		if err != nil {
			return c, err
		}
		switch f[0] {
		case "VmRSS:":
			c.RSS = kb * 1024
		case "VmHWM:":
			c.Peak = kb * 1024
		}
	}
	_, rest, ok := strings.Cut(stat, ") ") // the name may hold anything
	f := strings.Fields(rest)
	if !ok || len(f) < 13 || c.RSS == 0 {
		return c, fmt.Errorf("/proc says something else than expected: %.80q", stat)
	}
	user, err := strconv.ParseInt(f[11], 10, 64)
	if err != nil {
		return c, err
	}
	system, err := strconv.ParseInt(f[12], 10, 64)
	if err != nil {
		return c, err
	}
	c.CPU = time.Duration(user+system) * time.Second / userHZ
	return c, nil
}
