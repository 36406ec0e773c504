// Package supervisor is the last gate in front of a device, on the node that
// hosts it: every console, reset and check passes here, under the token of a lease.
//
// It keeps, per device and on disk, the highest token it has seen and the highest
// that was revoked:
//
//	token < highest, or token <= revoked   refused: Stale
//	token = highest                        admitted; it replaces its own older stream
//	token > highest                        remembered on disk first, then admitted; the
//	                                       older holder's streams are cut at once (D06, E19)
//
// Invariants: at no instant do two streams of one device exist; what is remembered
// never falls, across restarts too; after a stream was cut its holder reads and
// writes nothing more, whatever the driver still does.
//
// Streams are cut before anything is written to disk and before any lock that is
// held across I/O is asked for, so a stalled disk or driver delays no cut; and one
// device never waits for another.
//
// Goroutines: one per driver call, that ends it at its deadline; one per cut
// stream, that closes it. Close waits for the streams' own.
//
// It grants nothing and decides nothing about pools: package devices does.
package supervisor

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/devices"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/job"
)

// Driver reaches one device. Calls do not overlap, except that a stream is closed
// at any time. Each must return soon after its context ended.
type Driver interface {
	// Open gives the only stream to the device. Closing it ends its Reads and Writes.
	// It outlives the context. A stream may have Abort, which closes it and drops
	// what is still to be sent.
	Open(ctx context.Context) (io.ReadWriteCloser, error)
	// Reset brings the device to its baseline. The steps are those taken, also when
	// it fails.
	Reset(ctx context.Context) ([]devices.Step, error)
	// Identify reads again what the device is. It fails with Conflict when the
	// device is not the one that was configured.
	Identify(ctx context.Context) (devices.Identity, error)
}

// Hosted is a device of this node.
type Hosted struct {
	ID     forgeyard.DeviceID
	Driver Driver
	// OpenTimeout and CheckTimeout default to 10s, ResetTimeout to 30s. A call that
	// does not end in it has failed.
	OpenTimeout, CheckTimeout, ResetTimeout time.Duration
}

const (
	defaultTimeout      = 10 * time.Second
	defaultResetTimeout = 30 * time.Second
)

// Supervisor guards the devices of this node. It is safe for concurrent use.
type Supervisor struct {
	dir string
	clk clock.Clock
	log *slog.Logger

	mu    sync.Mutex // guards units; taken before a unit's own
	units map[forgeyard.DeviceID]*unit
}

// Open opens the memory in dir (<data>/devices), which it makes if need be.
func Open(dir string, clk clock.Clock, log *slog.Logger) (*Supervisor, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, forgeyard.E("devices", forgeyard.Other, err)
	}
	return &Supervisor{dir: dir, clk: clk, log: log, units: map[forgeyard.DeviceID]*unit{}}, nil
}

// Host begins to guard a device. A memory that cannot be read is not guessed at:
// the device is hosted, and refuses everything until Learn.
func (s *Supervisor) Host(h Hosted) error {
	// The id names a file.
	if err := job.CheckWord(string(h.ID)); err != nil {
		return forgeyard.E("device id", forgeyard.Invalid, err)
	}
	setDefault(&h.OpenTimeout, defaultTimeout)
	setDefault(&h.CheckTimeout, defaultTimeout)
	setDefault(&h.ResetTimeout, defaultResetTimeout)
	mem, err := load(filepath.Join(s.dir, string(h.ID)), h.ID)
	if err != nil {
		s.log.Error("what this node knew about a device's leases cannot be read", "device", h.ID, "err", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.units[h.ID] != nil {
		return forgeyard.Errorf("host device", forgeyard.Conflict, "%s is hosted already", h.ID)
	}
	s.units[h.ID] = &unit{Hosted: h, s: s, mem: mem, damaged: err, slot: make(chan struct{}, 1)}
	return nil
}

func setDefault(d *time.Duration, to time.Duration) {
	if *d <= 0 {
		*d = to
	}
}

func (s *Supervisor) unit(id forgeyard.DeviceID) (*unit, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if u := s.units[id]; u != nil {
		return u, nil
	}
	return nil, forgeyard.Errorf("device", forgeyard.NotFound, "%q is not hosted by this node", forgeyard.Clip(string(id), 64))
}

// Open gives the device's stream to the lease with the token. The stream of any
// lower token, and an older one of the same token, is cut. Kinds: Stale, NotFound,
// Conflict (another program has it, or identity_changed), Unavailable, Corrupt.
func (s *Supervisor) Open(ctx context.Context, id forgeyard.DeviceID, token uint64) (*Session, error) {
	u, err := s.unit(id)
	if err != nil {
		return nil, err
	}
	return u.open(ctx, token)
}

// Revoke ends the power of the token and of every lower one, and cuts their
// streams at once, also when the memory then cannot be written, which is the error.
func (s *Supervisor) Revoke(id forgeyard.DeviceID, token uint64) error {
	u, err := s.unit(id)
	if err != nil {
		return err
	}
	u.mu.Lock()
	u.raiseLocked(memory{highest: token, revoked: token})
	u.cutLocked("revoked")
	u.mu.Unlock()
	return u.persist()
}

// Reset revokes the token, then brings the device to its baseline. It may be
// repeated, after a crash too. A reset that was tried and failed is no error: the
// evidence says so. Kinds: Stale when a higher token is known, NotFound, Corrupt,
// and what the memory's disk said.
func (s *Supervisor) Reset(ctx context.Context, id forgeyard.DeviceID, token uint64) (devices.Evidence, error) {
	u, err := s.unit(id)
	if err != nil {
		return devices.Evidence{}, err
	}
	return u.reset(ctx, token)
}

// Check reads the device's identity again and, when no lease can be using it,
// opens and closes it. It touches no open stream. A check that fails is no error:
// the evidence says so.
func (s *Supervisor) Check(ctx context.Context, id forgeyard.DeviceID) (devices.Evidence, error) {
	u, err := s.unit(id)
	if err != nil {
		return devices.Evidence{}, err
	}
	return u.check(ctx)
}

// Learn tells what the site's log says: the highest token ever granted for the
// device. It raises the memory, and mends one that could not be read. The caller
// must have read the log currently, not from a stale copy.
func (s *Supervisor) Learn(id forgeyard.DeviceID, token uint64) error {
	u, err := s.unit(id)
	if err != nil {
		return err
	}
	u.mu.Lock()
	if u.damaged != nil {
		if token > 0 {
			u.raiseLocked(memory{highest: token, revoked: token - 1})
		}
		u.damaged, u.dirty = nil, true
	}
	u.raiseLocked(memory{highest: token})
	u.cutLocked("a newer lease is in the log")
	u.mu.Unlock()
	return u.persist()
}

// Status is what the supervisor knows of one device.
type Status struct {
	ID      forgeyard.DeviceID `json:"id"`
	Highest uint64             `json:"highest_token"`
	Revoked uint64             `json:"revoked_token"`
	Open    bool               `json:"open"`              // a stream exists
	Damaged string             `json:"damaged,omitempty"` // why everything is refused
}

// Status tells what is known of a device.
func (s *Supervisor) Status(id forgeyard.DeviceID) (Status, error) {
	u, err := s.unit(id)
	if err != nil {
		return Status{}, err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	st := Status{ID: id, Highest: u.mem.highest, Revoked: u.mem.revoked, Open: u.cur != nil && !u.cur.ended()}
	if u.damaged != nil {
		st.Damaged = u.damaged.Error()
	}
	return st, nil
}

// Close cuts all streams and waits until they are closed, or the context ends.
func (s *Supervisor) Close(ctx context.Context) error {
	s.mu.Lock()
	var cut []*Session
	for _, u := range s.units {
		u.mu.Lock()
		u.closed = true
		if u.flight != nil {
			u.flight.stop(errClosing)
		}
		if u.cur != nil {
			u.cur.cut(errClosing)
			cut = append(cut, u.cur)
		}
		u.mu.Unlock()
	}
	s.mu.Unlock()
	for _, c := range cut {
		if err := c.wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// What was under way is told apart from what comes later: its holder lost the host, not
// the device.
var (
	errClosing = forgeyard.Errorf("device", forgeyard.Interrupted, "the node is shutting down")
	errClosed  = forgeyard.Errorf("device", forgeyard.Unavailable, "the node is shutting down")
)

func staleToken(id forgeyard.DeviceID, token uint64, m memory) error {
	why := fmt.Sprintf("token %d is known", m.highest)
	if token <= m.revoked {
		why = fmt.Sprintf("tokens up to %d were revoked", m.revoked)
	}
	return forgeyard.Errorf("device", forgeyard.Stale, "token %d is no longer valid for %s: %s", token, id, why)
}
