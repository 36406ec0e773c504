package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/durable"
)

// The folders of a data dir (architecture §11).
const (
	dirRaft        = "raft"
	dirCAS         = "cas"
	dirWorkspaces  = "workspaces"
	dirSpool       = "spool"
	dirLayers      = "layers"
	fileScrub      = "scrub"
	dirAgent       = "agent"
	dirDevices     = "devices"
	dirUploads     = "uploads" // of the build cache, on their way
	fileLock       = "lock"
	fileFounding   = "identity/founding"
	fileWitness    = "raft/witness"
	fileSuperseded = "superseded" // the statement that ended this node's incarnation
	fileControl    = "control.sock"
	filePorts      = "ports"

	fileCacheTokens  = "cache-tokens"
	fileCacheAddress = "cache-address" // where the build cache answers, while it does
)

// dataDir is a locked data directory.
type dataDir struct {
	path string
	lock *os.File
}

func (d *dataDir) join(parts ...string) string {
	return filepath.Join(append([]string{d.path}, parts...)...)
}

// openDataDir makes the folders and takes the lock, which the kernel frees when the
// process ends, however it ends.
func openDataDir(path string) (*dataDir, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, forgeyard.E("data dir", forgeyard.Invalid, err)
	}
	for _, sub := range []string{"", "identity", dirRaft, dirCAS, dirWorkspaces, dirLayers, dirSpool, dirAgent, dirDevices} {
		if err := makeDir(filepath.Join(abs, sub), modeOf(sub)); err != nil {
			return nil, forgeyard.E("data dir", kindOfIO(err), err).WithHint("choose another with --data-dir")
		}
	}
	f, err := os.OpenFile(filepath.Join(abs, fileLock), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, forgeyard.E("data dir", kindOfIO(err), err)
	}
	if err := durable.TryLock(f); err != nil {
		holder := readPID(f)
		f.Close()
		return nil, forgeyard.Errorf("data dir", forgeyard.Conflict, "%s is in use by %s", abs, holder).WithHint("one daemon a data dir: stop that one, or give this one another --data-dir")
	}
	if err := writePID(f); err != nil {
		f.Close()
		return nil, forgeyard.E("data dir", kindOfIO(err), err)
	}
	return &dataDir{path: abs, lock: f}, nil
}

// modeOf is who may enter a folder: workloads of the process executor run as another
// user and must reach their workspace; nobody may list anything, and nobody reaches the
// rest.
func modeOf(sub string) os.FileMode {
	if sub == "" || sub == dirWorkspaces {
		return 0o711
	}
	return 0o700
}

// makeDir makes a folder, and tightens one that is there.
func makeDir(path string, mode os.FileMode) error {
	if err := os.MkdirAll(path, mode); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}

func readPID(f *os.File) string {
	b := make([]byte, 32)
	n, _ := f.ReadAt(b, 0) // a lock that nobody wrote to is still a lock
	if pid := strings.TrimSpace(string(b[:n])); pid != "" {
		return "process " + pid
	}
	return "another process"
}

func writePID(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

// close frees the lock by name before it closes the file: a child that was forked a
// moment ago still holds a copy of the descriptor until it runs its own program.
func (d *dataDir) close() error { return errors.Join(durable.Unlock(d.lock), d.lock.Close()) }

// writeFile replaces a file durably, with an error of our shape.
func writeFile(path string, data []byte, mode os.FileMode) error {
	if err := durable.WriteFile(path, data, mode); err != nil {
		return forgeyard.E("write", kindOfIO(err), fmt.Errorf("%s: %w", path, err))
	}
	return nil
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return forgeyard.E("remove", kindOfIO(err), err)
	}
	return nil
}

// kindOfIO is the kind of an error of the file system.
func kindOfIO(err error) forgeyard.Kind {
	switch {
	case durable.Full(err):
		return forgeyard.NoSpace
	case errors.Is(err, fs.ErrPermission):
		return forgeyard.Denied
	case errors.Is(err, fs.ErrNotExist):
		return forgeyard.NotFound
	}
	return forgeyard.KindOf(err)
}
