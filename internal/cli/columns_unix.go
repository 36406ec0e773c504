//go:build unix

package cli

import (
	"os"

	"golang.org/x/sys/unix"
)

// columns is how wide the terminal is now, or what terminals are when it does not say.
func columns(w any) int {
	if f, ok := w.(*os.File); ok {
		if ws, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil && ws.Col > 0 {
			return int(ws.Col)
		}
	}
	return usualColumns
}
