package uplink

import (
	"path/filepath"

	"golang.org/x/sys/unix"
)

// HasTimeSource says whether the wall clock means anything: the machine has a
// clock of its own that runs without power, or the kernel's was synchronised.
func HasTimeSource() bool {
	if rtcs, err := filepath.Glob("/sys/class/rtc/rtc*"); err == nil && len(rtcs) > 0 {
		return true
	}
	var tx unix.Timex
	state, err := unix.Adjtimex(&tx)
	return err == nil && state != unix.TIME_ERROR && tx.Status&unix.STA_UNSYNC == 0
}
