package supervisor

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"sync"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/devices"
)

// unit is one hosted device.
type unit struct {
	Hosted
	s *Supervisor

	// slot is held during a driver call: calls of one device do not overlap. It is
	// never waited for while mu is held.
	slot chan struct{}
	// disk is held while the memory is written.
	disk sync.Mutex

	mu      sync.Mutex // guards what follows; held across no I/O
	mem     memory
	dirty   bool  // mem is not on the disk yet
	damaged error // the memory could not be read
	closed  bool
	cur     *Session          // the newest stream; it may have ended
	flight  *flight           // the driver call under way, or nil
	known   *devices.Identity // as of the last check that passed
}

// flight is a driver call under way.
type flight struct {
	token uint64
	opens bool // it is for the holder: a revocation ends it. A reset comes after one.
	stop  context.CancelCauseFunc
}

func (u *unit) raiseLocked(m memory) {
	if next := u.mem.raise(m); next != u.mem {
		u.mem, u.dirty = next, true
	}
}

// admitLocked says whether the token may act, or why not.
func (u *unit) admitLocked(token uint64) error {
	switch {
	case u.closed:
		return errClosed
	case u.damaged != nil:
		return forgeyard.E("device "+string(u.ID), forgeyard.Corrupt, u.damaged).WithHint("it is refused until the site's log was read; see `device doctor`")
	case token == 0:
		return forgeyard.Errorf("device", forgeyard.Invalid, "token 0 is no lease of %s", u.ID)
	case token < u.mem.highest, token <= u.mem.revoked:
		return staleToken(u.ID, token, u.mem)
	}
	return nil
}

// cutLocked ends the stream and the driver call of every token that has no power
// any more.
func (u *unit) cutLocked(why string) {
	if f := u.flight; f != nil && (f.token < u.mem.highest || f.opens && f.token <= u.mem.revoked) {
		f.stop(staleToken(u.ID, f.token, u.mem))
	}
	if c := u.cur; c != nil && (c.token < u.mem.highest || c.token <= u.mem.revoked) && c.cut(staleToken(u.ID, c.token, u.mem)) {
		u.s.log.Info("device stream cut", "device", u.ID, "token", c.token, "why", why)
	}
}

// persist writes the memory if it changed. Memory in RAM is raised first, so an
// error leaves the device safe: what is refused stays refused until the process
// ends, and nothing is opened before a later try has written it.
func (u *unit) persist() error {
	u.disk.Lock()
	defer u.disk.Unlock()
	u.mu.Lock()
	m, dirty := u.mem, u.dirty
	u.mu.Unlock()
	if !dirty {
		return nil
	}
	if err := store(filepath.Join(u.s.dir, string(u.ID)), u.ID, m); err != nil {
		return forgeyard.E("device "+string(u.ID), diskKind(err), err)
	}
	u.mu.Lock()
	u.dirty = u.mem != m
	u.mu.Unlock()
	return nil
}

func (u *unit) open(ctx context.Context, token uint64) (*Session, error) {
	u.mu.Lock()
	if err := u.admitLocked(token); err != nil {
		u.mu.Unlock()
		return nil, err
	}
	u.raiseLocked(memory{highest: token})
	u.cutLocked("a newer lease")
	old := u.cur
	if old != nil {
		old.cut(forgeyard.Errorf("device", forgeyard.Stale, "%s was opened again under the same token %d", u.ID, token))
	}
	u.mu.Unlock()
	if err := u.persist(); err != nil {
		return nil, err
	}
	var s *Session
	err := u.call(ctx, flight{token: token, opens: true}, u.OpenTimeout, func(ctx context.Context) error {
		if err := u.ready(ctx, old); err != nil {
			return err
		}
		rw, err := u.Driver.Open(ctx)
		if err != nil {
			return err
		}
		s, err = u.begin(token, rw)
		return err
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// ready waits until the older stream is closed, then makes sure that the device is
// the one it was. Nothing was written yet when that fails (D10).
func (u *unit) ready(ctx context.Context, old *Session) error {
	if old != nil {
		if err := old.wait(ctx); err != nil {
			return err
		}
	}
	return u.identify(ctx)
}

// begin makes the opened stream the current one, unless its token lost its power
// while the driver was busy.
func (u *unit) begin(token uint64, rw io.ReadWriteCloser) (*Session, error) {
	u.mu.Lock()
	err := u.admitLocked(token)
	if err == nil && u.cur != nil && !u.cur.ended() {
		err = forgeyard.Errorf("device", forgeyard.Conflict, "%s was opened by another call at the same time", u.ID)
	}
	if err != nil {
		u.mu.Unlock()
		abort(rw)
		return nil, err
	}
	u.cur = newSession(u, token, rw)
	s := u.cur
	u.mu.Unlock()
	u.s.log.Info("device opened", "device", u.ID, "token", token)
	return s, nil
}

// call runs one driver call: alone, bounded, and ended when its token loses its power.
func (u *unit) call(ctx context.Context, fl flight, limit time.Duration, f func(context.Context) error) error {
	select {
	case u.slot <- struct{}{}:
	case <-ctx.Done():
		return forgeyard.E("device", forgeyard.Interrupted, context.Cause(ctx))
	}
	defer func() { <-u.slot }()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	u.mu.Lock()
	if u.closed || fl.token < u.mem.highest {
		err := staleToken(u.ID, fl.token, u.mem)
		if u.closed {
			err = errClosed
		}
		u.mu.Unlock()
		return err
	}
	fl.stop = stop
	u.flight = &fl
	u.mu.Unlock()
	defer func() {
		u.mu.Lock()
		u.flight = nil
		u.mu.Unlock()
	}()
	go func() {
		select {
		case <-u.s.clk.After(limit):
			stop(forgeyard.Errorf("device", forgeyard.Unavailable, "%s did not answer within %v", u.ID, limit))
		case <-ctx.Done():
		}
	}()
	if err := f(ctx); err != nil {
		return because(ctx, err)
	}
	return nil
}

// because prefers the reason for which a call was ended to what it then said.
func because(ctx context.Context, err error) error {
	var ours *forgeyard.Error
	if cause := context.Cause(ctx); cause != nil {
		if errors.As(cause, &ours) {
			return cause
		}
		return forgeyard.E("device", forgeyard.Interrupted, cause)
	}
	if errors.As(err, &ours) {
		return err
	}
	return forgeyard.E("device", forgeyard.Unavailable, err)
}

// identify compares the device with what the last check saw.
func (u *unit) identify(ctx context.Context) error {
	now, err := u.Driver.Identify(ctx)
	if err != nil {
		return err
	}
	u.mu.Lock()
	known := u.known
	if known == nil {
		u.known = &now
	}
	u.mu.Unlock()
	if known != nil && !known.Same(now) {
		return forgeyard.Errorf("device", forgeyard.Conflict, "identity_changed: %s was %s, it is %s", u.ID, name(*known), name(now)).
			WithHint("check the device again")
	}
	return nil
}

func name(i devices.Identity) string {
	if i.Serial != "" {
		return "serial " + i.Serial + " at " + i.Path
	}
	return i.Path
}

func (u *unit) reset(ctx context.Context, token uint64) (devices.Evidence, error) {
	u.mu.Lock()
	if err := u.admitLocked(token); err != nil && !(u.damaged == nil && !u.closed && token == u.mem.highest) {
		u.mu.Unlock()
		return devices.Evidence{}, err
	}
	u.raiseLocked(memory{highest: token, revoked: token})
	u.cutLocked("reset")
	old := u.cur
	u.mu.Unlock()
	if err := u.persist(); err != nil {
		return devices.Evidence{}, err
	}
	e := devices.Evidence{Token: token}
	err := u.call(ctx, flight{token: token}, u.ResetTimeout, func(ctx context.Context) error {
		if err := u.ready(ctx, old); err != nil {
			return err
		}
		var err error
		e.Steps, err = u.Driver.Reset(ctx)
		return err
	})
	if k := forgeyard.KindOf(err); k == forgeyard.Stale || k == forgeyard.Interrupted {
		return e, err // the reset was taken away, which says nothing about the device
	}
	if e.OK = err == nil; !e.OK {
		e.Error = err.Error()
	}
	u.s.log.Info("device reset", "device", u.ID, "token", token, "ok", e.OK, "err", e.Error)
	return e, nil
}

func (u *unit) check(ctx context.Context) (devices.Evidence, error) {
	u.mu.Lock()
	token, idle := u.mem.highest, u.mem.highest == u.mem.revoked && (u.cur == nil || u.cur.ended())
	u.mu.Unlock()
	e := devices.Evidence{Token: token}
	begin := u.s.clk.Now()
	step := func(name string, err error, detail string) error {
		st := devices.Step{Name: name, OK: err == nil, Detail: detail, Took: u.s.clk.Now().Sub(begin)}
		if err != nil {
			st.Detail = err.Error()
		}
		e.Steps = append(e.Steps, st)
		return err
	}
	err := u.call(ctx, flight{token: token}, u.CheckTimeout, func(ctx context.Context) error {
		now, err := u.Driver.Identify(ctx)
		if err = step("identify", err, name(now)); err != nil {
			return err
		}
		if err := u.adopt(now, idle); err != nil {
			return step("compare", err, "")
		}
		if !idle {
			return nil
		}
		rw, err := u.Driver.Open(ctx)
		if err == nil {
			err = rw.Close()
		}
		return step("open", err, "")
	})
	if k := forgeyard.KindOf(err); k == forgeyard.Stale || k == forgeyard.Interrupted {
		return e, err
	}
	if e.OK = err == nil; !e.OK {
		e.Error = err.Error()
	}
	return e, nil
}

// adopt remembers what a check saw. While a lease may be using the device it must
// be the same as before.
func (u *unit) adopt(now devices.Identity, idle bool) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !idle && u.known != nil && !u.known.Same(now) {
		return forgeyard.Errorf("device", forgeyard.Conflict, "identity_changed: %s was %s, it is %s", u.ID, name(*u.known), name(now))
	}
	u.known = &now
	return nil
}
