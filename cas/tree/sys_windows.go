package tree

import (
	"errors"
	"time"

	"golang.org/x/sys/windows"
)

const openNonblock = 0 // there are no pipes in a Windows directory

// setLinkTime does nothing: a link's time is not seen by builds on Windows.
func setLinkTime(string, time.Time) error { return nil }

func isNoSpace(err error) bool {
	return errors.Is(err, windows.ERROR_DISK_FULL) || errors.Is(err, windows.ERROR_HANDLE_DISK_FULL)
}
