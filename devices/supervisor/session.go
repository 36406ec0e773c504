package supervisor

import (
	"context"
	"io"
	"sync"
	"sync/atomic"

	"github.com/forgeyard/forgeyard-node"
)

// Session is the stream of one lease to one device. Read and Write may each be
// called by one goroutine at a time; Close by any.
type Session struct {
	u     *unit
	token uint64
	rw    io.ReadWriteCloser

	once   sync.Once
	err    atomic.Pointer[error] // why it ended; nil while it lives
	done   chan struct{}         // closed when it has ended, before the driver has closed it
	closed chan struct{}         // closed when the driver has closed it
}

// chunk is how much is written between two looks at the fence.
const chunk = 1024

func newSession(u *unit, token uint64, rw io.ReadWriteCloser) *Session {
	return &Session{u: u, token: token, rw: rw, done: make(chan struct{}), closed: make(chan struct{})}
}

// Token is the lease's.
func (s *Session) Token() uint64 { return s.token }

// Done is closed when the stream has ended: by Close, by a newer lease, by a
// revocation.
func (s *Session) Done() <-chan struct{} { return s.done }

// Err is why the stream ended: nil while it lives, io.EOF after Close, else an
// error of kind Stale or Unavailable.
func (s *Session) Err() error {
	if p := s.err.Load(); p != nil {
		return *p
	}
	return nil
}

func (s *Session) ended() bool { return s.err.Load() != nil }

// Read implements io.Reader. What arrives after the end is not handed out.
func (s *Session) Read(p []byte) (int, error) {
	if err := s.Err(); err != nil {
		return 0, err
	}
	n, err := s.rw.Read(p)
	if end := s.Err(); end != nil {
		clear(p[:n])
		return 0, end
	}
	if err != nil && err != io.EOF {
		err = forgeyard.E("read device "+string(s.u.ID), orUnavailable(err), err)
	}
	return n, err
}

// Write implements io.Writer. The fence is looked at before each chunk.
func (s *Session) Write(p []byte) (int, error) {
	written := 0
	for {
		if err := s.Err(); err != nil {
			return written, err
		}
		n, err := s.rw.Write(p[written:min(len(p), written+chunk)])
		written += n
		if end := s.Err(); end != nil && err != nil {
			return written, end
		}
		if err != nil {
			return written, forgeyard.E("write device "+string(s.u.ID), orUnavailable(err), err)
		}
		if written == len(p) {
			return written, nil
		}
	}
}

// Close ends the stream; what was written is still sent. Closing again is no error.
func (s *Session) Close() error {
	s.end(io.EOF, s.rw.Close)
	<-s.closed
	return nil
}

// cut ends the stream without its holder, and does not wait for the driver. It
// reports whether the stream was alive.
func (s *Session) cut(why error) bool {
	return s.end(why, func() error { return abort(s.rw) })
}

func (s *Session) end(why error, how func() error) bool {
	first := false
	s.once.Do(func() {
		first = true
		s.err.Store(&why)
		close(s.done)
		go func() {
			defer close(s.closed)
			if err := how(); err != nil {
				s.u.s.log.Debug("closing a device's stream", "device", s.u.ID, "token", s.token, "err", err)
			}
		}()
	})
	return first
}

// wait returns when the driver has closed the stream, or the context ended.
func (s *Session) wait(ctx context.Context) error {
	select {
	case <-s.closed:
		return nil
	case <-ctx.Done():
		return forgeyard.Errorf("device", forgeyard.Unavailable, "%s: the stream of token %d does not close", s.u.ID, s.token)
	}
}

// abort closes a stream and, where it can, drops what is still to be sent: a kicked
// holder's bytes must not trickle out.
func abort(rw io.ReadWriteCloser) error {
	if a, ok := rw.(interface{ Abort() error }); ok {
		return a.Abort()
	}
	return rw.Close()
}

func orUnavailable(err error) forgeyard.Kind {
	if k := forgeyard.KindOf(err); k != forgeyard.Other {
		return k
	}
	return forgeyard.Unavailable
}
