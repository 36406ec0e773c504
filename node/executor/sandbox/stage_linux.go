package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/forgeyard/forgeyard-node"
)

// stage gathers what a request brings along where the dedicated user can reach
// it. The daemon's folders are closed to that user and stay so: the mounts exist
// in the mount namespace of the starting thread and its child only, and vanish
// with them.
type stage struct {
	mounts []mount
	index  map[string]int // host path → number of its staged place
}

// stageDir is covered by the stage in that namespace. Every Linux has it.
const stageDir = "/tmp"

func newStage(ms []mount) *stage {
	s := &stage{mounts: ms, index: map[string]int{}}
	for i, m := range ms {
		if _, ok := s.index[m.host]; !ok {
			s.index[m.host] = i
		}
	}
	return s
}

// path is where the namespace has the mount's host path.
func (s *stage) path(m mount) string {
	return filepath.Join(stageDir, strconv.Itoa(s.index[m.host]))
}

// mountAll runs on the starting thread. Sources are opened before the stage
// covers stageDir, since they may lie below it.
func (s *stage) mountAll() error {
	fds := make([]int, len(s.mounts))
	for i := range fds {
		fds[i] = -1
	}
	defer func() {
		for _, fd := range fds {
			if fd >= 0 {
				unix.Close(fd)
			}
		}
	}()
	for i, m := range s.mounts {
		fd, err := unix.Open(m.host, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return stageError(m.host, err)
		}
		fds[i] = fd
	}
	if err := unix.Mount("forgeyard", stageDir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755,size=64k"); err != nil {
		return stageError(stageDir, err)
	}
	for i, m := range s.mounts {
		if s.index[m.host] != i {
			continue
		}
		if err := bindFD(fds[i], s.path(m)); err != nil {
			return stageError(m.host, err)
		}
	}
	return nil
}

// bindFD mounts what fd names on a new place of the same kind.
func bindFD(fd int, place string) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	var err error
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		err = os.Mkdir(place, 0o755)
	} else {
		err = os.WriteFile(place, nil, 0o644)
	}
	if err != nil {
		return err
	}
	return unix.Mount(fmt.Sprintf("/proc/self/fd/%d", fd), place, "", unix.MS_BIND|unix.MS_REC, "")
}

func stageError(what string, err error) error {
	kind := forgeyard.Unavailable
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		kind = forgeyard.Invalid
	}
	return forgeyard.E("sandbox", kind, fmt.Errorf("show %s: %w", what, err))
}
