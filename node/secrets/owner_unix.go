//go:build unix

package secrets

import (
	"io/fs"
	"os"
	"syscall"
)

// noWait keeps a pipe that took the place of a file from being waited for.
const noWait = syscall.O_NONBLOCK

// ownerOf says whose a file is, and whether that is root or the user who asks.
func ownerOf(st fs.FileInfo) (uid int, mine bool) {
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return -1, false
	}
	uid = int(sys.Uid)
	return uid, uid == 0 || uid == os.Geteuid()
}
