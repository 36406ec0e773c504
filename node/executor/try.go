package executor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/forgeyard/forgeyard-node"
)

// Layout makes the folders of a workspace below root and gives the writable ones
// to the executor's user. The root is closed to other users only by the folders
// themselves, since the workload must pass through it.
func Layout(e Executor, root string) error {
	uid, gid := e.Owner()
	for _, d := range []struct {
		name  string
		mode  os.FileMode
		owned bool
	}{
		{SourceDir, 0o755, false},
		{BuildDir, 0o755, true},
		{TmpDir, 0o700, true},
		{CkptDir, 0o700, true},
		{CtlDir, 0o777 | os.ModeSticky, false}, // sticky: the workload adds files and cannot replace ours
		{filepath.Join(CtlDir, "inbox"), 0o755, false},
		{filepath.Join(CtlDir, "outbox"), 0o700, true},
		{RestoreDir, 0o755, false},
		{DevicesDir, 0o755, false},
		{BinDir, 0o755, false},
	} {
		p := filepath.Join(root, d.name)
		err := os.Mkdir(p, 0o700)
		if err == nil {
			err = os.Chmod(p, d.mode) // not bent by the umask
		}
		if err == nil && d.owned && uid >= 0 {
			err = os.Chown(p, uid, gid)
		}
		if err != nil {
			return forgeyard.E("workspace", KindOfDisk(err), err)
		}
	}
	return nil
}

// probeKill bounds the end of a probe: what does not die within it is reported.
const probeKill = 30 * time.Second

// Try runs a request to its end in a workspace of its own: what a probe does.
func Try(ctx context.Context, e Executor, r Request, scratch string) (exit Exit, err error) {
	root, err := os.MkdirTemp(scratch, "forgeyard-probe-")
	if err != nil {
		return Exit{}, forgeyard.E("probe", KindOfDisk(err), err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(root)) }()
	if err := errors.Join(os.Chmod(root, 0o711), Layout(e, root)); err != nil {
		return Exit{}, err
	}
	r.ID, r.Root = filepath.Base(root), root
	h, err := e.Start(ctx, r)
	if err != nil {
		return Exit{}, err
	}
	select {
	case <-h.Done():
	case <-ctx.Done():
	}
	kctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeKill)
	defer cancel()
	if err := h.Kill(kctx); err != nil {
		return Exit{}, err
	}
	return h.Wait(), ctx.Err()
}
