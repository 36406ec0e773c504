package executor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/node/executor/users"
)

// Layout makes the folders of a workspace below root and gives the writable ones
// to the workload's user. The workload passes through the root by its group and cannot list
// it; nobody else passes, so what is readable below is so for this user alone.
func Layout(u users.User, root string) error {
	if u.Lent() {
		if err := errors.Join(os.Chown(root, -1, u.GID), os.Chmod(root, 0o710)); err != nil {
			return forgeyard.E("workspace", KindOfDisk(err), err)
		}
	}
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
		if err == nil && d.owned && u.Lent() {
			err = os.Chown(p, u.UID, u.GID)
		}
		if err != nil {
			return forgeyard.E("workspace", KindOfDisk(err), err)
		}
	}
	return nil
}

// probeKill bounds the end of a probe: what does not die within it is reported.
const probeKill = 30 * time.Second

// ProbePrefix begins the name of what a probe works in; it removes it itself.
const ProbePrefix = "forgeyard-probe-"

// Try runs a request to its end in a workspace of its own: what a probe does.
func Try(ctx context.Context, e Executor, r Request, scratch string) (exit Exit, err error) {
	root, err := os.MkdirTemp(scratch, ProbePrefix)
	if err != nil {
		return Exit{}, forgeyard.E("probe", KindOfDisk(err), err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(root)) }()
	r.ID, r.Root = filepath.Base(root), root
	if r.User, err = e.Users().Lend(r.ID); err != nil {
		return Exit{}, err
	}
	if err := Layout(r.User, root); err != nil {
		e.Users().Return(r.ID)
		return Exit{}, err
	}
	h, err := e.Start(ctx, r)
	if err != nil {
		e.Users().Return(r.ID)
		return Exit{}, err
	}
	select {
	case <-h.Done():
	case <-ctx.Done():
	}
	kctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeKill)
	defer cancel()
	if err := h.Kill(kctx); err != nil {
		return Exit{}, err // what does not die keeps its user
	}
	e.Users().Return(r.ID)
	return h.Wait(), ctx.Err()
}
