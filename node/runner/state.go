package runner

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/durable"
	"github.com/forgeyard/forgeyard-node/internal/invariant"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/executor"
	"github.com/forgeyard/forgeyard-node/node/executor/users"
)

// state is what a later process of this runner needs to clean up after this one. It
// helps recovery and is never authority (07§39). No secret is in it (07§62).
type state struct {
	Version    int                 `json:"version"` // stateVersion
	Authority  forgeyard.Authority `json:"authority"`
	Phase      job.Phase           `json:"phase"`
	Workspace  string              `json:"workspace,omitempty"`
	Sandbox    job.Sandbox         `json:"sandbox,omitempty"`
	Orphan     executor.Orphan     `json:"orphan,omitzero"`
	User       users.User          `json:"user,omitzero"`
	Grants     []grant             `json:"grants,omitempty"`
	Completion []byte              `json:"completion,omitempty"`
}

const (
	stateVersion = 1
	stateSuffix  = ".json"
)

// save changes the state file: temp, fsync, rename, fsync of the folder (07§41). Nobody who
// asks the attempt something waits for the disk.
func (a *Attempt) save(change func(*state)) error {
	a.saving.Lock()
	defer a.saving.Unlock()
	a.mu.Lock()
	change(&a.state)
	a.state.Version, a.state.Authority = stateVersion, a.task.Authority
	a.state.Phase = a.phase
	b, err := json.MarshalIndent(a.state, "", "  ")
	a.mu.Unlock()
	invariant.NoError(err, "the recovery state encodes")
	return writeDurably(filepath.Join(a.run.cfg.StateDir, a.id+stateSuffix), b)
}

// saveBeside makes a change at once and writes it in a goroutine of its own, for which the end
// of the life waits. then is told when it is on the disk.
func (a *Attempt) saveBeside(change func(*state), then func(error)) {
	a.mu.Lock()
	change(&a.state)
	a.mu.Unlock()
	a.saves.Go(func() { then(a.save(func(*state) {})) })
}

func writeDurably(file string, b []byte) error {
	if err := durable.WriteFile(file, b, 0o600); err != nil {
		return forgeyard.E("write state", executor.KindOfDisk(err), err)
	}
	return nil
}

func absent(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// KeepCompletion keeps the completion that is about to be proposed, with its message id,
// across a restart: the answer may be lost, and only the same message may be sent
// again (07§93–94). The bytes are the caller's; Recover gives them back.
func (a *Attempt) KeepCompletion(b []byte) error {
	return a.save(func(s *state) { s.Completion = b })
}

// forget removes a state file.
func (r *Runner) forget(id string) error {
	if err := absent(os.Remove(filepath.Join(r.cfg.StateDir, id+stateSuffix))); err != nil {
		return forgeyard.E("forget "+id, executor.KindOfDisk(err), err)
	}
	return syncDir(r.cfg.StateDir)
}

// Forget removes what Recover kept of an epoch, once its completion was answered. What could
// not be cleaned up stays written down without it, for this process and the next; a log that
// could not be saved is put aside.
func (r *Runner) Forget(a forgeyard.Authority) error {
	if err := r.putAside(a); err != nil {
		return err
	}
	r.mu.Lock()
	_, left := r.undone[epochName(a)]
	r.mu.Unlock()
	if !left {
		return r.forget(epochName(a))
	}
	name := filepath.Join(r.cfg.StateDir, epochName(a)+stateSuffix)
	s, err := readState(name)
	if err != nil {
		return absent(err) // it was cleaned up meanwhile
	}
	s.Completion = nil
	b, err := json.MarshalIndent(s, "", "  ")
	invariant.NoError(err, "the recovery state encodes")
	return writeDurably(name, b)
}
