//go:build !windows

package party

import "syscall"

// OwnUsage is the CPU time of this process in seconds and the peak of its memory in
// bytes.
func OwnUsage() (cpu, peak float64) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, 0
	}
	sec := func(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }
	return sec(u.Utime) + sec(u.Stime), peakMemory()
}
