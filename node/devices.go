package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"connectrpc.com/connect"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/api/wire"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/devices/serial"
	"github.com/forgeyard/forgeyard-node/devices/supervisor"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/agent"
	"github.com/forgeyard/forgeyard-node/node/control"
	"github.com/forgeyard/forgeyard-node/node/runner"
	"github.com/forgeyard/forgeyard-node/site"
)

func (n *Node) openDevices(_ context.Context, c *closers) error {
	s, err := supervisor.Open(n.dir.join(dirDevices), n.clock, n.log)
	if err != nil {
		return err
	}
	n.devices = s
	c.add(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		return s.Close(ctx)
	})
	for _, d := range n.settings().Devices {
		err := s.Host(supervisor.Hosted{ID: d.ID, ResetTimeout: d.Reset.Timeout, Driver: serial.New(serial.Config{
			Path: d.Path, Baud: d.Baud, Serial: d.Serial, Send: d.Reset.Send, Expect: d.Reset.Expect,
		}, n.clock)})
		if err != nil {
			return err
		}
	}
	return nil
}

// learnDevices tells the supervisor what the log knows of the devices hosted here. It
// is called when this process is registered, so that the copy it reads is current.
func (n *Node) learnDevices() {
	for id, d := range n.replica.State().Devices.All() {
		if d.Host != n.enrolment.RunnerID {
			continue
		}
		if err := n.devices.Learn(id, d.HighestFence); err != nil && forgeyard.KindOf(err) != forgeyard.NotFound {
			n.log.Error("what is known of a device could not be kept", "device", id, "err", err)
		}
	}
}

// deviceReport is how long the site may take to hear of a reset or a check.
const deviceReport = 30 * time.Second

// resetDevice brings a device back to its baseline after a lease, and reports it.
func (n *Node) resetDevice(ctx context.Context, e agent.ResetDevice) {
	ev, err := n.devices.Reset(ctx, e.Device, e.Token)
	if k := forgeyard.KindOf(err); k == forgeyard.Stale || k == forgeyard.Interrupted {
		return // the reset was taken away: that says nothing about the device
	}
	if ev.Token, ev.Try = e.Token, e.Try; err != nil {
		ev.OK, ev.Error = false, err.Error()
	}
	n.log.Info("device reset", "device", e.Device, "ok", ev.OK, "error", ev.Error)
	n.reportDevice(ctx, e.Device, site.DeviceReset{Device: e.Device, Host: n.enrolment.RunnerID, Evidence: ev})
}

// checkDevice looks whether a device is fit for its next lease.
func (n *Node) checkDevice(ctx context.Context, id forgeyard.DeviceID) {
	ev, err := n.devices.Check(ctx, id)
	b := site.DeviceHealth{Device: id, Action: "checked", OK: err == nil && ev.OK, Reason: ev.Error}
	if err != nil {
		b.Reason = err.Error()
	}
	n.reportDevice(ctx, id, b)
}

func (n *Node) reportDevice(ctx context.Context, id forgeyard.DeviceID, b site.Body) {
	rctx, cancel := context.WithTimeout(ctx, deviceReport)
	defer cancel()
	if _, err := n.propose(rctx, b); err != nil && ctx.Err() == nil {
		n.log.Warn("the state of a device was not reported", "device", id, "err", err)
		n.local.mu.Lock()
		n.local.book.NotReported(id)
		n.local.mu.Unlock()
		n.nudge()
	}
}

// openConsole opens the console of a device under a token: here, or on the node
// that hosts it, whose supervisor checks the token at each use (§10).
func (n *Node) openConsole(ctx context.Context, id forgeyard.DeviceID, token uint64) (io.ReadWriteCloser, error) {
	d, ok := n.replica.State().Devices.Get(id)
	if !ok {
		return nil, forgeyard.Errorf("console", forgeyard.NotFound, "no device %s", id)
	}
	if d.Host == n.enrolment.RunnerID {
		return n.openLocalConsole(ctx, id, token)
	}
	c, err := n.peers.runner(d.Host)
	if err != nil {
		return nil, err
	}
	s := c.Console(ctx)
	if err := s.Send(&forgeyardv1.PeerConsoleData{DeviceId: string(id), Token: token}); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return &remoteConsole{s: s, ended: make(chan struct{})}, nil
}

// openLocalConsole admits a holder whose token the log still calls current, so that
// a token that was never granted cannot raise the supervisor's memory.
func (n *Node) openLocalConsole(ctx context.Context, id forgeyard.DeviceID, token uint64) (io.ReadWriteCloser, error) {
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	err := n.until(ctx, func(s *site.State) bool {
		d, ok := s.Devices.Get(id)
		return !ok || d.HighestFence >= token
	})
	if err != nil {
		return nil, forgeyard.Errorf("console", forgeyard.Unavailable, "this node has not heard of token %d yet", token)
	}
	d, ok := n.replica.State().Devices.Get(id)
	if !ok {
		return nil, forgeyard.Errorf("console", forgeyard.NotFound, "no device %s", id)
	}
	if err := d.Admit(token); err != nil {
		return nil, err
	}
	return n.devices.Open(context.WithoutCancel(ctx), id, token)
}

// remoteConsole is a console on another node. One goroutine reads it, one writes.
type remoteConsole struct {
	s     *connect.BidiStreamForClient[forgeyardv1.PeerConsoleData, forgeyardv1.PeerConsoleData]
	buf   []byte
	ended chan struct{} // closed with the first error of Read
	err   error         // that error
}

func (r *remoteConsole) Read(b []byte) (int, error) {
	for len(r.buf) == 0 {
		m, err := r.s.Receive()
		if err != nil {
			r.end(err)
			return 0, err
		}
		r.buf = m.Data
	}
	k := copy(b, r.buf)
	r.buf = r.buf[k:]
	return k, nil
}

func (r *remoteConsole) end(err error) {
	select {
	case <-r.ended:
	default:
		r.err = err
		close(r.ended)
	}
}

func (r *remoteConsole) Write(b []byte) (int, error) {
	err := r.s.Send(&forgeyardv1.PeerConsoleData{Data: b})
	if errors.Is(err, io.EOF) {
		<-r.ended // why the stream ended is known to who reads
		return 0, r.err
	}
	if err != nil {
		return 0, err
	}
	return len(b), nil
}

// hostLost says why the stream ended if the node that hosts the device went away. What
// the host itself says of the device, or of its lease, is no such loss.
func (r *remoteConsole) hostLost() error {
	select {
	case <-r.ended:
	default:
		return nil
	}
	k := forgeyard.KindOf(r.err)
	if errors.Is(r.err, io.EOF) || (wire.Answered(r.err) && k != forgeyard.Interrupted) {
		return nil
	}
	return r.err
}

func (r *remoteConsole) Close() error {
	return errors.Join(r.s.CloseRequest(), r.s.CloseResponse())
}

// boundDevice is a device as an execution has it.
type boundDevice struct {
	held   site.HeldDevice
	pty    *serial.Pty
	remote *remoteConsole // nil: it is hosted here
}

// hostLost says that the device's host went away, or nothing.
func (b *boundDevice) hostLost(name string) string {
	if b.remote == nil {
		return ""
	}
	select {
	case <-b.pty.Done():
	default:
		return ""
	}
	if err := b.remote.hostLost(); err != nil {
		return fmt.Sprintf("%s: the host %s of device %s went away: %v", job.DeviceHostLost, name, b.held.Device, err)
	}
	return ""
}

// bindDevices opens the devices of the epoch and gives each to the workload as a
// terminal of its own, so that a shell can use it like the real one. The returned function
// gives them back.
func (x *execution) bindDevices(ctx context.Context) ([]runner.DeviceBinding, func(), error) {
	var out []runner.DeviceBinding
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	release := func() {
		cancel()
		for _, b := range x.bound {
			if err := b.pty.Close(); err != nil {
				x.n.log.Warn("a device bridge did not close well", "device", b.held.Device, "err", err)
			}
		}
	}
	for _, h := range x.job.Devices {
		b, err := x.bindDevice(ctx, h)
		if err != nil {
			release()
			return nil, nil, err
		}
		out = append(out, runner.DeviceBinding{As: h.As, HostPath: b.pty.Path()})
	}
	for _, b := range x.bound {
		x.n.work.Go(func() { x.mindDevice(ctx, b) })
	}
	return out, release, nil
}

func (x *execution) bindDevice(ctx context.Context, h site.HeldDevice) (*boundDevice, error) {
	rw, err := x.n.openConsole(ctx, h.Device, h.Token)
	if err != nil {
		return nil, err
	}
	b := &boundDevice{held: h}
	b.remote, _ = rw.(*remoteConsole)
	if b.pty, err = serial.Bridge(ctx, rw, ""); err != nil {
		return nil, err
	}
	x.bound = append(x.bound, b) // the runner gives it to the user of the attempt
	return b, nil
}

// mindDevice gives the job back when the host of its device goes away: what the workload
// does without the device says nothing about the work. It is asked for a checkpoint first,
// as by a pre-emption.
func (x *execution) mindDevice(ctx context.Context, b *boundDevice) {
	select {
	case <-ctx.Done():
		return
	case <-b.pty.Done():
	}
	if b.remote != nil { // a write may have failed first; why is known to who reads
		select {
		case <-ctx.Done():
			return
		case <-b.remote.ended:
		}
	}
	why := b.hostLost(x.n.memberName(b.held.Host))
	if why == "" || ctx.Err() != nil {
		return
	}
	x.n.log.Warn("an execution lost a device", "job", x.authority.Job, "epoch", x.authority.Fence.Epoch, "why", why)
	x.mu.Lock()
	if x.stopped == "" {
		x.stopped = site.ReleasedHostLost
	}
	x.mu.Unlock()
	x.ask(func(a *runner.Attempt) { a.Stop(checkpoint.StopPreempt, why) })
}

// lostHost says which device's host went away while the work was under way, or nothing.
func (x *execution) lostHost() string {
	for _, b := range x.bound {
		if why := b.hostLost(x.n.memberName(b.held.Host)); why != "" {
			return why
		}
	}
	return ""
}

// Console carries a person's session with a leased device.
func (n *Node) Console(ctx context.Context, id forgeyard.DeviceID, token uint64, person control.ConsoleStream) error {
	rw, err := n.openConsole(ctx, id, token)
	if err != nil {
		return err
	}
	return pump(ctx, rw, person)
}

// pump copies both ways until either end has gone.
func pump(ctx context.Context, rw io.ReadWriteCloser, s control.ConsoleStream) error {
	ends := make(chan error, 2)
	go func() {
		buf := make([]byte, 4096)
		for {
			k, err := rw.Read(buf)
			if k > 0 {
				if serr := s.Send(buf[:k]); serr != nil {
					err = serr
				}
			}
			if err != nil {
				ends <- err
				return
			}
		}
	}()
	go func() {
		for {
			b, err := s.Receive()
			if err == nil {
				_, err = rw.Write(b)
			}
			if err != nil {
				ends <- err
				return
			}
		}
	}()
	var err error
	select {
	case err = <-ends:
	case <-ctx.Done():
		err = forgeyard.E("console", forgeyard.Interrupted, context.Cause(ctx))
	}
	cerr := rw.Close()
	if err == nil || errors.Is(err, io.EOF) {
		return cerr
	}
	return err
}
