package tree

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/windows"
)

// setLinkTime does nothing: a link's time is not seen by builds on Windows.
func setLinkTime(string, time.Time) error { return nil }

func isNoSpace(err error) bool {
	return errors.Is(err, windows.ERROR_DISK_FULL) || errors.Is(err, windows.ERROR_HANDLE_DISK_FULL)
}

// setFileTime leaves it to afterClose: closing a written file sets its time.
func setFileTime(*os.File, time.Time) error { return nil }

// afterClose sets what can only be set by name.
func afterClose(root *os.Root, name string) error { return root.Chtimes(name, FixedTime, FixedTime) }

// refusesName tells a filesystem that cannot hold a name, or a link, from one in trouble.
func refusesName(err error) bool {
	return errors.Is(err, windows.ERROR_INVALID_NAME) || errors.Is(err, windows.ERROR_FILENAME_EXCED_RANGE) || errors.Is(err, windows.ERROR_PRIVILEGE_NOT_HELD)
}
