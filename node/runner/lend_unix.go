//go:build unix

package runner

import (
	"errors"
	"os"
	"syscall"
)

// grant is a host file whose owner was changed for the length of an epoch.
type grant struct {
	Path string `json:"path"`
	UID  int    `json:"uid"` // who owned it before
	Dev  uint64 `json:"dev"` // which file it was, so that no other of the same name is given away
	Ino  uint64 `json:"ino"`
}

// lend lets the workload's user open a device, nil when nothing had to change.
func lend(path string, uid int) (*grant, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok || uid < 0 || int(sys.Uid) == uid || st.Mode().Perm()&0o006 == 0o006 {
		return nil, nil
	}
	if err := os.Chown(path, uid, -1); err != nil {
		return nil, err
	}
	return &grant{Path: path, UID: int(sys.Uid), Dev: uint64(sys.Dev), Ino: uint64(sys.Ino)}, nil
}

// giveBack restores the owner; a file that is gone or is another needs nothing.
func (g grant) giveBack() error {
	st, err := os.Stat(g.Path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok || uint64(sys.Dev) != g.Dev || uint64(sys.Ino) != g.Ino {
		return nil
	}
	return os.Chown(g.Path, g.UID, -1)
}

// syncDir makes a rename in dir last.
func syncDir(dir string) (err error) {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return f.Sync()
}
