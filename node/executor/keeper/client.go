package keeper

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/node/executor"
)

// Config of a client.
type Config struct {
	Program string // path of this program, which is started again under Name
	Clock   clock.Clock
	Log     *slog.Logger
}

// Waits of the client.
const (
	writeWithin  = time.Second           // the pipe holds thousands of orders; who does not read them is stopped
	restartFirst = 50 * time.Millisecond // before a keeper that ended is started again
	restartMost  = 5 * time.Second       //
	steadyAfter  = 10 * time.Second      // a keeper that lived this long did not fail at its start
	mindWithin   = 3 * time.Second       // after that a keeper is taken for stopped
)

// Keeper is the daemon's end: it keeps one keeper process running and tells it what to
// hold. It is safe for concurrent use.
type Keeper struct {
	cfg  Config
	stop chan struct{}
	done chan struct{}

	mu       sync.Mutex // guards all below
	held     map[string]order
	now      *process      // nil: none runs at this moment
	changed  chan struct{} // closed when now changes
	restarts int
	why      error // of the last end
}

// process is one keeper process.
type process struct {
	cmd *exec.Cmd
	in  *os.File
	end chan struct{} // closed when it has ended

	mu      sync.Mutex // guards all below; held while an order is written, so that they arrive in the order of their numbers
	seq     uint64
	waiting map[uint64]chan answer
}

// Start starts the keeper process. Unavailable: it cannot be started.
func Start(cfg Config) (*Keeper, error) {
	k := &Keeper{cfg: cfg, held: map[string]order{}, changed: make(chan struct{}), stop: make(chan struct{}), done: make(chan struct{})}
	p, err := spawn(cfg.Program)
	if err != nil {
		return nil, err
	}
	k.now = p
	go k.mind(p)
	return k, nil
}

// mind starts a new keeper whenever one has ended.
func (k *Keeper) mind(p *process) {
	defer close(k.done)
	wait := restartFirst
	for {
		since := k.cfg.Clock.Now()
		if p != nil {
			<-p.end
			_ = p.in.Close()
		}
		k.mu.Lock()
		if p != nil {
			k.why = forgeyard.Errorf("keeper", forgeyard.Unavailable, "it ended: %s", p.cmd.ProcessState)
		}
		k.set(nil)
		k.restarts++
		n, why := len(k.held), k.why
		k.mu.Unlock()
		select {
		case <-k.stop:
			return
		default:
		}
		k.cfg.Log.Error("the keeper of deadlines is gone, and is started again", "held", n, "err", why)
		if k.cfg.Clock.Now().Sub(since) > steadyAfter {
			wait = restartFirst
		}
		select {
		case <-k.stop:
			return
		case <-k.cfg.Clock.After(wait):
		}
		wait = min(2*wait, restartMost)
		p = k.again()
	}
}

// set is called with mu held.
func (k *Keeper) set(p *process) {
	k.now = p
	close(k.changed)
	k.changed = make(chan struct{})
}

// again starts a keeper and gives it all that is held, or notes why there is none.
func (k *Keeper) again() *process {
	p, err := spawn(k.cfg.Program)
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil {
		k.why = err
		return nil
	}
	for _, o := range k.held {
		if _, err := p.send(o); err != nil {
			break // it ended again, and is minded again
		}
	}
	select {
	case <-k.stop:
		_ = p.in.Close() // Close came while it was started, and did not see it
	default:
	}
	k.set(p)
	return p
}

func spawn(program string) (*process, error) {
	fail := func(err error) (*process, error) { return nil, forgeyard.E("keeper", forgeyard.Unavailable, err) }
	inR, inW, err := os.Pipe()
	if err != nil {
		return fail(err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		inR.Close()
		inW.Close()
		return fail(err)
	}
	p := &process{in: inW, end: make(chan struct{}), waiting: map[uint64]chan answer{}}
	// It needs no setting and no secret of the environment, and one processor.
	p.cmd = &exec.Cmd{Path: program, Args: []string{Name}, Env: []string{"GOMAXPROCS=1"}, Dir: "/", Stdin: inR, Stdout: outW, Stderr: os.Stderr, SysProcAttr: apart()}
	err = p.cmd.Start()
	inR.Close()
	outW.Close()
	if err != nil {
		inW.Close()
		outR.Close()
		return fail(err)
	}
	go p.listen(outR)
	return p, nil
}

// listen hands answers to who waits for them, until the process has ended.
func (p *process) listen(out *os.File) {
	defer close(p.end)
	r := bufio.NewReaderSize(out, maxLine)
	for {
		line, err := r.ReadSlice('\n')
		var a answer
		if err != nil || json.Unmarshal(line, &a) != nil {
			break
		}
		p.mu.Lock()
		if c := p.waiting[a.Seq]; c != nil {
			c <- a // it holds one
			delete(p.waiting, a.Seq)
		}
		p.mu.Unlock()
	}
	out.Close()
	p.in.Close()
	_ = p.cmd.Wait() // the state says how it ended
}

// send writes an order; the answer comes on the channel.
func (p *process) send(o order) (<-chan answer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seq++
	o.Seq = p.seq
	c := make(chan answer, 1)
	p.waiting[o.Seq] = c
	err := p.in.SetWriteDeadline(time.Now().Add(writeWithin)) // a pipe's deadline counts on Go's own clock
	if err == nil {
		err = writeLine(p.in, o)
	}
	if err != nil {
		delete(p.waiting, o.Seq)
		_ = p.cmd.Process.Kill() // it reads nothing, or half an order is on its way: another one takes its place
		return nil, forgeyard.E("keeper", forgeyard.Unavailable, err)
	}
	return c, nil
}

// ask sends an order and waits for its answer.
func (p *process) ask(ctx context.Context, o order) (answer, error) {
	c, err := p.send(o)
	if err != nil {
		return answer{}, err
	}
	select {
	case a := <-c:
		return a, nil
	case <-p.end:
		return answer{}, forgeyard.E("keeper", forgeyard.Unavailable, io.ErrUnexpectedEOF)
	case <-ctx.Done():
		return answer{}, forgeyard.E("keeper", forgeyard.Unavailable, ctx.Err())
	}
}

// Hold returns when the keeper has answered that it holds the tree of that name. Call it
// before anything of the tree exists. Unavailable: ctx ended before that.
func (k *Keeper) Hold(ctx context.Context, o executor.Orphan, until forgeyard.Instant) error {
	ord := order{Op: opHold, Orphan: o, Until: until}
	k.mu.Lock()
	k.held[o.ID] = ord
	k.mu.Unlock()
	for {
		k.mu.Lock()
		p, changed, why := k.now, k.changed, k.why
		k.mu.Unlock()
		if p != nil {
			if _, err := p.ask(ctx, ord); err == nil || ctx.Err() != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return forgeyard.Errorf("keeper", forgeyard.Unavailable, "nobody holds the deadline of %s: %v", o.ID, why)
		}
	}
}

// Move tells a later or earlier deadline. It does not wait for the answer: a keeper that
// dies is given the newest deadline when it is started again.
func (k *Keeper) Move(id string, until forgeyard.Instant) {
	k.mu.Lock()
	defer k.mu.Unlock()
	o, ok := k.held[id]
	if !ok || o.Until == until {
		return
	}
	o.Until = until
	k.held[id] = o
	if k.now == nil {
		return
	}
	if _, err := k.now.send(order{Op: opMove, Orphan: executor.Orphan{ID: id}, Until: until}); err != nil {
		k.cfg.Log.Warn("the keeper was not told of a deadline", "id", id, "err", err)
	}
}

// Struck reports whether the keeper has ended the tree. Unavailable: nobody can say.
func (k *Keeper) Struck(ctx context.Context, id string) (bool, error) {
	k.mu.Lock()
	p := k.now
	k.mu.Unlock()
	if p == nil {
		return false, forgeyard.Errorf("keeper", forgeyard.Unavailable, "none runs")
	}
	a, err := p.ask(ctx, order{Op: opAsk, Orphan: executor.Orphan{ID: id}})
	return a.Over, err
}

// Release ends a hold: the tree is confirmed dead, or was never started.
func (k *Keeper) Release(id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, ok := k.held[id]; !ok {
		return
	}
	delete(k.held, id)
	if k.now != nil {
		_, _ = k.now.send(order{Op: opRelease, Orphan: executor.Orphan{ID: id}}) // one that does not hear it ends nothing that lives
	}
}

// Mind looks whether the keeper answers, and has one that does not replaced: one that is
// stopped counts nothing. Call it now and then.
func (k *Keeper) Mind(ctx context.Context) {
	k.mu.Lock()
	p := k.now
	k.mu.Unlock()
	if p == nil {
		return
	}
	ask, cancel := context.WithTimeout(ctx, mindWithin)
	defer cancel()
	if _, err := p.ask(ask, order{Op: opAsk, Orphan: executor.Orphan{ID: "health"}}); err != nil && ctx.Err() == nil {
		k.cfg.Log.Error("the keeper of deadlines does not answer, and is replaced", "within", mindWithin)
		_ = p.cmd.Process.Kill()
	}
}

// Health is how the keeper is.
type Health struct {
	PID      int // 0: none runs
	Held     int
	Restarts int
	Err      error // nil: it answers
}

// Health asks the keeper how it is.
func (k *Keeper) Health(ctx context.Context) Health {
	k.mu.Lock()
	p, h := k.now, Health{Held: len(k.held), Restarts: k.restarts, Err: k.why}
	k.mu.Unlock()
	if p == nil {
		return h
	}
	ctx, cancel := context.WithTimeout(ctx, mindWithin)
	defer cancel()
	h.PID = p.cmd.Process.Pid
	_, h.Err = p.ask(ctx, order{Op: opAsk, Orphan: executor.Orphan{ID: "health"}})
	return h
}

// Close ends the keeper. What is still held is ended by it first.
func (k *Keeper) Close() error {
	close(k.stop)
	k.mu.Lock()
	p := k.now
	k.mu.Unlock()
	if p != nil {
		_ = p.in.Close() // the end of the pipe is the order to end
	}
	<-k.done
	return nil
}
