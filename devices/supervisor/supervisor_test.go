package supervisor

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/devices"
	"github.com/forgeyard/forgeyard-node/internal/clock"
)

// fakeDevice is a working device in memory: one stream at a time, an identity
// that can be swapped, and calls that can be held up.
type fakeDevice struct {
	mu       sync.Mutex
	open     bool
	identity devices.Identity
	written  bytes.Buffer
	input    chan []byte   // what the device says
	hold     chan struct{} // when not nil, Open and Reset wait for it or for their context
	entered  chan struct{} // a held call has begun
	resetErr error
	resets   int
}

func newFake() *fakeDevice {
	return &fakeDevice{identity: devices.Identity{Path: "/dev/x", Node: 1}, input: make(chan []byte, 16), entered: make(chan struct{}, 16)}
}

func (f *fakeDevice) wait(ctx context.Context) error {
	f.mu.Lock()
	hold := f.hold
	f.mu.Unlock()
	if hold == nil {
		return ctx.Err()
	}
	f.entered <- struct{}{}
	select {
	case <-hold:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *fakeDevice) setHold(c chan struct{}) { f.mu.Lock(); defer f.mu.Unlock(); f.hold = c }

func (f *fakeDevice) Open(ctx context.Context) (io.ReadWriteCloser, error) {
	if err := f.wait(ctx); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open {
		return nil, forgeyard.Errorf("open", forgeyard.Conflict, "two streams at once")
	}
	f.open = true
	return &fakeStream{f: f, gone: make(chan struct{})}, nil
}

func (f *fakeDevice) Reset(ctx context.Context) ([]devices.Step, error) {
	steps := []devices.Step{{Name: "reset"}}
	if err := f.wait(ctx); err != nil {
		return steps, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open {
		return nil, forgeyard.Errorf("reset", forgeyard.Conflict, "a stream is open during a reset")
	}
	f.resets++
	steps[0].OK = f.resetErr == nil
	return steps, f.resetErr
}

func (f *fakeDevice) Identify(context.Context) (devices.Identity, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.identity, nil
}

func (f *fakeDevice) swap(i devices.Identity) { f.mu.Lock(); defer f.mu.Unlock(); f.identity = i }

func (f *fakeDevice) bytes() string { f.mu.Lock(); defer f.mu.Unlock(); return f.written.String() }

type fakeStream struct {
	f    *fakeDevice
	once sync.Once
	gone chan struct{}
}

func (s *fakeStream) Read(p []byte) (int, error) {
	select {
	case b := <-s.f.input:
		return copy(p, b), nil
	case <-s.gone:
		return 0, os.ErrClosed
	}
}

func (s *fakeStream) Write(p []byte) (int, error) {
	select {
	case <-s.gone:
		return 0, os.ErrClosed
	default:
	}
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	return s.f.written.Write(p)
}

func (s *fakeStream) Close() error {
	s.once.Do(func() {
		close(s.gone)
		s.f.mu.Lock()
		s.f.open = false
		s.f.mu.Unlock()
	})
	return nil
}

type rig struct {
	t   *testing.T
	dir string
	dev *fakeDevice
	clk *clock.Manual
	s   *Supervisor
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, dir: filepath.Join(t.TempDir(), "devices"), dev: newFake(), clk: clock.NewManual(time.UnixMilli(0))}
	r.restart()
	return r
}

// restart is a new process on the same disk; the old one died and closed nothing
// in an orderly way.
func (r *rig) restart() {
	r.t.Helper()
	r.dev.mu.Lock()
	r.dev.open = false
	r.dev.mu.Unlock()
	s, err := Open(r.dir, r.clk, slog.New(slog.DiscardHandler))
	if err != nil {
		r.t.Fatal(err)
	}
	if err := s.Host(Hosted{ID: "dut", Driver: r.dev}); err != nil {
		r.t.Fatal(err)
	}
	r.s = s
}

func (r *rig) open(token uint64) *Session {
	r.t.Helper()
	c, err := r.s.Open(r.ctx(), "dut", token)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// ctx bounds a test, not a rule.
func (r *rig) ctx() context.Context {
	ctx, cancel := context.WithTimeout(r.t.Context(), 20*time.Second)
	r.t.Cleanup(cancel)
	return ctx
}

func (r *rig) refused(token uint64, kind forgeyard.Kind) {
	r.t.Helper()
	if _, err := r.s.Open(r.ctx(), "dut", token); forgeyard.KindOf(err) != kind {
		r.t.Fatalf("token %d: %v, want %v", token, err, kind)
	}
}

// TestNewerTokenTakesTheDevice: D06, E19. The older holder's reader wakes at once,
// gets nothing that was said later, and writes nothing more.
func TestNewerTokenTakesTheDevice(t *testing.T) {
	r := newRig(t)
	old := r.open(5)
	if _, err := old.Write([]byte("old")); err != nil {
		t.Fatal(err)
	}
	read := make(chan error, 1)
	go func() {
		_, err := old.Read(make([]byte, 10))
		read <- err
	}()
	begin := time.Now()
	now := r.open(6)
	select {
	case err := <-read:
		if forgeyard.KindOf(err) != forgeyard.Stale {
			t.Fatal(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the old holder still reads")
	}
	if took := time.Since(begin); took > time.Second {
		t.Fatalf("the old stream was cut after %v; a second is promised", took)
	}
	if n, err := old.Write([]byte("evil")); n != 0 || forgeyard.KindOf(err) != forgeyard.Stale {
		t.Fatalf("%d %v", n, err)
	}
	r.dev.input <- []byte("secret")
	buf := make([]byte, 10)
	if n, err := now.Read(buf); err != nil || string(buf[:n]) != "secret" {
		t.Fatalf("%q %v", buf[:n], err)
	}
	if n, err := old.Read(buf); n != 0 || forgeyard.KindOf(err) != forgeyard.Stale {
		t.Fatalf("%d %v", n, err)
	}
	if r.dev.bytes() != "old" {
		t.Fatalf("%q", r.dev.bytes())
	}
	r.refused(5, forgeyard.Stale)
	r.refused(0, forgeyard.Invalid)
}

// TestMemorySurvivesARestart: the fence stands at the resource.
func TestMemorySurvivesARestart(t *testing.T) {
	r := newRig(t)
	r.open(7).Close()
	r.restart()
	r.refused(6, forgeyard.Stale)
	r.open(7).Close() // the same lease goes on after the host came back
	if err := r.s.Revoke("dut", 7); err != nil {
		t.Fatal(err)
	}
	r.refused(7, forgeyard.Stale)
	r.restart()
	r.refused(7, forgeyard.Stale)
	if st, err := r.s.Status("dut"); err != nil || st.Highest != 7 || st.Revoked != 7 || st.Open {
		t.Fatalf("%+v %v", st, err)
	}
	r.open(8).Close()
}

// TestRevokeBeforeTheFirstOpen: a lease that was taken away before it ever reached
// this node is refused when it comes.
func TestRevokeBeforeTheFirstOpen(t *testing.T) {
	r := newRig(t)
	if err := r.s.Revoke("dut", 9); err != nil {
		t.Fatal(err)
	}
	r.refused(9, forgeyard.Stale)
	r.refused(3, forgeyard.Stale)
	r.open(10)
}

// TestRevokeCutsAnOpenInFlight: no stream comes out of a call that was overtaken.
func TestRevokeCutsAnOpenInFlight(t *testing.T) {
	r := newRig(t)
	r.dev.setHold(make(chan struct{}))
	res := make(chan error, 1)
	go func() {
		_, err := r.s.Open(r.ctx(), "dut", 5)
		res <- err
	}()
	<-r.dev.entered
	if err := r.s.Revoke("dut", 5); err != nil {
		t.Fatal(err)
	}
	if err := <-res; forgeyard.KindOf(err) != forgeyard.Stale {
		t.Fatal(err)
	}
	r.dev.setHold(nil)
	r.open(6)
}

// TestDriverThatDoesNotAnswer: a call ends at its deadline (E20) and the device can
// be tried again.
func TestDriverThatDoesNotAnswer(t *testing.T) {
	r := newRig(t)
	r.dev.setHold(make(chan struct{}))
	type out struct {
		e   devices.Evidence
		err error
	}
	res := make(chan out, 1)
	go func() {
		e, err := r.s.Reset(r.ctx(), "dut", 5)
		res <- out{e, err}
	}()
	<-r.dev.entered
	// The deadline's timer is set beside the call; the clock moves until it is seen.
	for done := false; !done; {
		r.clk.Advance(defaultResetTimeout)
		select {
		case o := <-res:
			done = true
			if o.err != nil || o.e.OK || !strings.Contains(o.e.Error, "did not answer within 30s") || len(o.e.Steps) != 1 {
				t.Fatalf("%+v %v", o.e, o.err)
			}
		default:
		}
	}
	r.dev.setHold(nil)
	if e, err := r.s.Reset(r.ctx(), "dut", 5); err != nil || !e.OK || e.Token != 5 {
		t.Fatalf("%+v %v", e, err)
	}
}

// TestResetEndsTheLease: RA-395. Its token has no power afterwards, the reset can be
// repeated, and it never hits a newer lease.
func TestResetEndsTheLease(t *testing.T) {
	r := newRig(t)
	c := r.open(5)
	e, err := r.s.Reset(r.ctx(), "dut", 5)
	if err != nil || !e.OK || forgeyard.KindOf(c.Err()) != forgeyard.Stale {
		t.Fatalf("%+v %v %v", e, err, c.Err())
	}
	r.refused(5, forgeyard.Stale)
	r.restart()
	if e, err := r.s.Reset(r.ctx(), "dut", 5); err != nil || !e.OK {
		t.Fatalf("after a crash a reset starts again: %+v %v", e, err)
	}
	now := r.open(6)
	if _, err := r.s.Reset(r.ctx(), "dut", 5); forgeyard.KindOf(err) != forgeyard.Stale {
		t.Fatal(err)
	}
	if now.Err() != nil || r.dev.resets != 2 {
		t.Fatalf("a late reset hit the newer lease: %v", now.Err())
	}
	r.dev.resetErr = errors.New("no prompt")
	if e, err := r.s.Reset(r.ctx(), "dut", 6); err != nil || e.OK || !strings.Contains(e.Error, "no prompt") {
		t.Fatalf("%+v %v", e, err)
	}
}

// TestRevokeDoesNotEndItsOwnReset: the end of a lease is told twice, as both.
func TestRevokeDoesNotEndItsOwnReset(t *testing.T) {
	r := newRig(t)
	hold := make(chan struct{})
	r.dev.setHold(hold)
	res := make(chan devices.Evidence, 1)
	go func() {
		e, _ := r.s.Reset(r.ctx(), "dut", 5)
		res <- e
	}()
	<-r.dev.entered
	if err := r.s.Revoke("dut", 5); err != nil {
		t.Fatal(err)
	}
	close(hold)
	if e := <-res; !e.OK {
		t.Fatalf("%+v", e)
	}
}

// TestNewerTokenEndsAReset that was given up in the log meanwhile.
func TestNewerTokenEndsAReset(t *testing.T) {
	r := newRig(t)
	r.dev.setHold(make(chan struct{}))
	res := make(chan error, 1)
	go func() {
		_, err := r.s.Reset(r.ctx(), "dut", 5)
		res <- err
	}()
	<-r.dev.entered
	r.dev.setHold(nil)
	r.open(6)
	if err := <-res; forgeyard.KindOf(err) != forgeyard.Stale {
		t.Fatal(err)
	}
}

// TestSwappedDeviceGetsNoByte: D10.
func TestSwappedDeviceGetsNoByte(t *testing.T) {
	r := newRig(t)
	if e, err := r.s.Check(r.ctx(), "dut"); err != nil || !e.OK {
		t.Fatalf("%+v %v", e, err)
	}
	r.dev.swap(devices.Identity{Path: "/dev/y", Node: 2})
	_, err := r.s.Open(r.ctx(), "dut", 5)
	if forgeyard.KindOf(err) != forgeyard.Conflict || !strings.Contains(err.Error(), "identity_changed") {
		t.Fatal(err)
	}
	if e, err := r.s.Check(r.ctx(), "dut"); err != nil || e.OK || !strings.Contains(e.Error, "identity_changed") {
		t.Fatalf("a lease is live, its device must be the same: %+v %v", e, err)
	}
	if e, err := r.s.Reset(r.ctx(), "dut", 5); err != nil || e.OK || r.dev.resets != 0 {
		t.Fatalf("%+v %v", e, err)
	}
	if r.dev.bytes() != "" {
		t.Fatalf("%q was written to the wrong device", r.dev.bytes())
	}
	// No lease is live now: the check is what adopts the device.
	if e, err := r.s.Check(r.ctx(), "dut"); err != nil || !e.OK || len(e.Steps) != 2 {
		t.Fatalf("%+v %v", e, err)
	}
	if e, err := r.s.Reset(r.ctx(), "dut", 5); err != nil || !e.OK {
		t.Fatalf("%+v %v", e, err)
	}
	r.open(6)
}

// TestCheckTouchesNoOpenStream: D02's neighbour; a check during a lease only looks.
func TestCheckTouchesNoOpenStream(t *testing.T) {
	r := newRig(t)
	c := r.open(5)
	if e, err := r.s.Check(r.ctx(), "dut"); err != nil || !e.OK || len(e.Steps) != 1 || c.Err() != nil {
		t.Fatalf("%+v %v %v", e, err, c.Err())
	}
}

// TestFullDiskOpensNothing: the token must be remembered before it has power.
func TestFullDiskOpensNothing(t *testing.T) {
	r := newRig(t)
	old := r.open(5)
	away := r.dir + ".away"
	if err := os.Rename(r.dir, away); err != nil { // the write of the memory fails
		t.Fatal(err)
	}
	for range 2 {
		r.refused(6, forgeyard.Unavailable)
	}
	if forgeyard.KindOf(old.Err()) != forgeyard.Stale {
		t.Fatalf("the older stream lives: %v", old.Err())
	}
	r.refused(5, forgeyard.Stale)
	if err := os.Rename(away, r.dir); err != nil {
		t.Fatal(err)
	}
	r.open(6)
	r.restart()
	r.refused(5, forgeyard.Stale)
}

// TestDamagedMemoryRefusesAll until the log was read.
func TestDamagedMemoryRefusesAll(t *testing.T) {
	r := newRig(t)
	r.open(7).Close()
	if err := os.WriteFile(filepath.Join(r.dir, "dut"), []byte("fydev 1 dut 2 1 00000000\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.restart()
	r.refused(9, forgeyard.Corrupt)
	if _, err := r.s.Reset(r.ctx(), "dut", 9); forgeyard.KindOf(err) != forgeyard.Corrupt {
		t.Fatal(err)
	}
	if err := r.s.Learn("dut", 8); err != nil {
		t.Fatal(err)
	}
	r.refused(7, forgeyard.Stale)
	r.open(8)
	r.restart()
	r.refused(7, forgeyard.Stale)
	r.open(8)
	if err := r.s.Learn("dut", 9); err != nil {
		t.Fatal(err)
	}
	r.refused(8, forgeyard.Stale)
}

// TestSameLeaseOpensAgain: a holder that lost its connection takes its own stream over.
func TestSameLeaseOpensAgain(t *testing.T) {
	r := newRig(t)
	first := r.open(5)
	second := r.open(5)
	if forgeyard.KindOf(first.Err()) != forgeyard.Stale || second.Err() != nil {
		t.Fatal(first.Err(), second.Err())
	}
	for range 2 { // closing again is no error
		if err := second.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if second.Err() != io.EOF {
		t.Fatal(second.Err())
	}
	<-second.Done()
	if _, err := r.s.Open(r.ctx(), "other", 5); forgeyard.KindOf(err) != forgeyard.NotFound {
		t.Fatal(err)
	}
	if err := r.s.Host(Hosted{ID: "dut"}); forgeyard.KindOf(err) != forgeyard.Conflict {
		t.Fatal(err)
	}
	if err := r.s.Host(Hosted{ID: "../dut"}); forgeyard.KindOf(err) != forgeyard.Invalid {
		t.Fatal(err)
	}
}

func TestCloseCutsEverything(t *testing.T) {
	r := newRig(t)
	c := r.open(5)
	if err := r.s.Close(r.ctx()); err != nil {
		t.Fatal(err)
	}
	if forgeyard.KindOf(c.Err()) != forgeyard.Interrupted || r.dev.open {
		t.Fatal(c.Err())
	}
	r.refused(6, forgeyard.Unavailable)
}

// TestManyHoldersAtOnce: device-single-holder under load. The fake refuses a second
// stream, and the highest token must win in the end.
func TestManyHoldersAtOnce(t *testing.T) {
	r := newRig(t)
	var wg sync.WaitGroup
	for token := uint64(1); token <= 100; token++ {
		wg.Add(1)
		go func() {
			defer wg.Done()
			c, err := r.s.Open(r.ctx(), "dut", token)
			switch forgeyard.KindOf(err) {
			case forgeyard.Other:
				if _, err := c.Write([]byte("x")); err != nil && forgeyard.KindOf(err) != forgeyard.Stale {
					t.Error(err)
				}
			case forgeyard.Stale:
			default:
				t.Error(token, err)
			}
		}()
	}
	wg.Wait()
	st, err := r.s.Status("dut")
	if err != nil || st.Highest != 100 || !st.Open {
		t.Fatalf("%+v %v", st, err)
	}
	b, err := os.ReadFile(filepath.Join(r.dir, "dut"))
	if m, err2 := decode(b, "dut"); err != nil || err2 != nil || m.highest != 100 {
		t.Fatalf("%q %v %v", b, err, err2)
	}
}

func TestMemoryFile(t *testing.T) {
	m := memory{highest: 4711, revoked: 4709}
	b := m.encode("dut-1")
	if string(b) != "fydev 1 dut-1 4711 4709 "+string(b[len(b)-9:]) {
		t.Fatalf("%q", b)
	}
	if back, err := decode(b, "dut-1"); err != nil || back != m {
		t.Fatal(back, err)
	}
	for i := range b {
		bad := bytes.Clone(b)
		bad[i] ^= 1
		if _, err := decode(bad, "dut-1"); forgeyard.KindOf(err) != forgeyard.Corrupt {
			t.Errorf("byte %d: %v", i, err)
		}
	}
	if _, err := decode(b, "dut-2"); forgeyard.KindOf(err) != forgeyard.Corrupt {
		t.Error("another device's memory")
	}
	old, err := os.ReadFile("testdata/memory-v1")
	if err != nil {
		t.Fatal(err)
	}
	if back, err := decode(old, "dut-1"); err != nil || back != m {
		t.Fatal(back, err)
	}
}

func FuzzDecodeMemory(f *testing.F) {
	f.Add(memory{5, 4}.encode("dut"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decode(b, "dut")
		if err != nil {
			if forgeyard.KindOf(err) != forgeyard.Corrupt {
				t.Fatal(err)
			}
			return
		}
		if !bytes.Equal(m.encode("dut"), b) || m.revoked > m.highest {
			t.Fatalf("%+v", m)
		}
	})
}
