package bulk

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// untilLargePage is where in b, which is longer than that, a large page begins.
func untilLargePage(b []byte) int {
	return int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) % largePage)
}

// wantLargePages asks for large pages under b. Without them all is as before, only slower.
func wantLargePages(b []byte) { _ = unix.Madvise(b, unix.MADV_HUGEPAGE) }
