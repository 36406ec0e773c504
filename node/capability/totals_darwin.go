package capability

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// totals is not tested on this platform.
func totals(dir string) (Totals, error) {
	disk, err := diskTotal(dir)
	if err != nil {
		return Totals{}, err
	}
	t := Totals{MilliCPU: int64(runtime.NumCPU()) * 1000, Disk: disk}
	if m, err := unix.SysctlUint64("hw.memsize"); err == nil {
		t.Memory = int64(m)
	}
	return t, nil
}
