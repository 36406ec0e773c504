package serial

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"

	"github.com/forgeyard/forgeyard-node"
)

// Pty is a console for a workload: a pty whose far end is joined to a stream.
//
// Goroutines: one copies each way; one waits for the context. All end with Close.
type Pty struct {
	path   string
	link   string
	rw     io.ReadWriteCloser
	master *os.File
	slave  *os.File // held so that the workload may open and close the pty as it likes

	once    sync.Once
	slaveMu sync.Mutex
	err     error
	done    chan struct{} // closed when the bridge has ended; err is set before
	up      chan struct{} // closed when nothing more comes from the workload
	copies  sync.WaitGroup
}

// Bridge makes a pty in raw mode, without echo, and joins it to rw, which it owns
// from then on: it is closed when the bridge ends, and its Close must end its Read
// and Write. The bridge ends when the stream does, when the context does, or by
// Close; the workload then reads the end of file.
//
// With a link, a symbolic link to the pty is made there, and removed at the end;
// it must not exist. Neither side is ever buffered without bound: who does not read
// holds the other back.
func Bridge(ctx context.Context, rw io.ReadWriteCloser, link string) (*Pty, error) {
	master, slave, path, err := openPty()
	if err != nil {
		return nil, errors.Join(err, rw.Close())
	}
	if link != "" {
		if err := os.Symlink(path, link); err != nil {
			return nil, errors.Join(forgeyard.E("bridge", forgeyard.Unavailable, err), rw.Close(), master.Close(), slave.Close())
		}
	}
	p := &Pty{path: path, link: link, rw: rw, master: master, slave: slave, done: make(chan struct{}), up: make(chan struct{})}
	p.copies.Add(2)
	go func() {
		defer p.copies.Done()
		_, err := io.Copy(master, rw)
		p.end(err)
	}()
	go func() {
		defer p.copies.Done()
		_, err := io.Copy(rw, onlyReader{master})
		close(p.up)
		p.end(hungUp(err))
	}()
	go func() {
		select {
		case <-ctx.Done():
			p.end(forgeyard.E("bridge", forgeyard.Interrupted, context.Cause(ctx)))
		case <-p.done:
		}
	}()
	return p, nil
}

// onlyReader hides WriteTo, so that Copy reads with its own small buffer.
type onlyReader struct{ io.Reader }

// Path is the pty that the workload opens: /dev/pts/N.
func (p *Pty) Path() string { return p.path }

// Done is closed when the bridge has ended.
func (p *Pty) Done() <-chan struct{} { return p.done }

// Err is why the bridge ended: nil while it lives and after Close.
func (p *Pty) Err() error {
	select {
	case <-p.done:
		return p.err
	default:
		return nil
	}
}

// Drain lets what the workload wrote last reach the stream, until it has or the
// context ends, and then closes the bridge. Call it when the workload has exited.
func (p *Pty) Drain(ctx context.Context) error {
	p.closeSlave()
	select {
	case <-p.up: // with no slave open the master reads what is left, then an end
	case <-p.done:
	case <-ctx.Done():
	}
	return p.Close()
}

// Close ends the bridge and waits for its copies. Closing again is no error.
func (p *Pty) Close() error {
	p.end(nil)
	p.copies.Wait()
	return nil
}

func (p *Pty) end(err error) {
	p.once.Do(func() {
		p.err = err
		close(p.done)
		if p.link != "" {
			_ = os.Remove(p.link) // the workspace it stands in goes too
		}
		p.closeSlave()
		_ = p.master.Close()
		_ = p.rw.Close()
	})
}

func (p *Pty) closeSlave() {
	p.slaveMu.Lock()
	defer p.slaveMu.Unlock()
	_ = p.slave.Close() // a second close fails and harms nothing
}
