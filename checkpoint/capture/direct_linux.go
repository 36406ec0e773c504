package capture

import (
	"os"

	"golang.org/x/sys/unix"
)

// openDirect opens a file that is there for writes past the kernel's cache; nil where its
// filesystem has none.
func openDirect(path string) *os.File {
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_DIRECT|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil
	}
	return f
}
