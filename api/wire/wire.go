// Package wire carries our errors across Connect without losing their kind: the
// kind, the text and the hint arrive as they were sent, so that a command line far
// away has the same exit code and the same line.
package wire

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"

	"connectrpc.com/connect"

	"github.com/forgeyard/forgeyard-node"
)

// The kind and the hint travel in the error's metadata.
const (
	kindHeader = "Forgeyard-Error-Kind"
	hintHeader = "Forgeyard-Error-Hint"
)

var codes = map[forgeyard.Kind]connect.Code{
	forgeyard.Invalid:     connect.CodeInvalidArgument,
	forgeyard.NotFound:    connect.CodeNotFound,
	forgeyard.Conflict:    connect.CodeFailedPrecondition,
	forgeyard.Stale:       connect.CodeAborted,
	forgeyard.Unavailable: connect.CodeUnavailable,
	forgeyard.Unknown:     connect.CodeUnknown,
	forgeyard.Denied:      connect.CodePermissionDenied,
	forgeyard.Limit:       connect.CodeResourceExhausted,
	forgeyard.NoSpace:     connect.CodeResourceExhausted,
	forgeyard.Corrupt:     connect.CodeDataLoss,
	forgeyard.Interrupted: connect.CodeCanceled,
}

// ToConnect turns an error into one that Connect sends.
func ToConnect(err error) error {
	if err == nil {
		return nil
	}
	var already *connect.Error
	if errors.As(err, &already) {
		return err
	}
	kind := forgeyard.KindOf(err)
	if kind == forgeyard.Other && errors.Is(err, context.DeadlineExceeded) {
		kind = forgeyard.Unavailable
	}
	code, ok := codes[kind]
	if !ok {
		code = connect.CodeInternal
	}
	text, hint := err.Error(), ""
	var e *forgeyard.Error
	if errors.As(err, &e) && e == err {
		hint = e.Hint
		bare := *e
		bare.Hint = ""
		text = bare.Error()
	}
	c := connect.NewError(code, errors.New(text))
	c.Meta().Set(kindHeader, kind.String())
	if hint != "" {
		c.Meta().Set(hintHeader, hint)
	}
	return c
}

// FromConnect is the inverse. An error that did not come from one of ours, such
// as a refused connection, gets the kind that its code means.
func FromConnect(err error) error {
	if err == nil {
		return nil
	}
	var c *connect.Error
	if !errors.As(err, &c) || errors.Is(err, io.EOF) {
		return err // io.EOF, wrapped or not, is how a stream ends well
	}
	e := forgeyard.E("", kindOfCode(c), errors.New(c.Message()))
	switch w := c.Meta().Get(kindHeader); {
	case w != "":
		e.Kind, e.Err = forgeyard.ParseKind(w), answered{e.Err}
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		e.Kind = forgeyard.Unavailable // the other end went away in the middle of a message
	}
	if c.Code() == connect.CodeUnimplemented {
		e.Err = notOffered{e.Err}
	}
	e.Hint = c.Meta().Get(hintHeader)
	return e
}

// notOffered marks an error of a side that does not know the call.
type notOffered struct{ error }

func (n notOffered) Unwrap() error { return n.error }

// NotOffered reports whether the other side does not know the call at all: it is older. What
// it did before may serve.
func NotOffered(err error) bool {
	var n notOffered
	return errors.As(err, &n)
}

// answered marks an error that the other side gave: it was reached, and this is what it
// said. An error without it says nothing about what the other side did.
type answered struct{ error }

// Answered reports whether an error is the other side's own answer.
func Answered(err error) bool {
	var a answered
	return errors.As(err, &a)
}

func kindOfCode(c *connect.Error) forgeyard.Kind {
	switch c.Code() {
	case connect.CodeUnavailable, connect.CodeDeadlineExceeded:
		return forgeyard.Unavailable
	case connect.CodeCanceled:
		return forgeyard.Interrupted
	case connect.CodeUnauthenticated:
		return forgeyard.Denied
	case connect.CodeUnimplemented:
		return forgeyard.Invalid
	}
	for k, code := range codes {
		if code == c.Code() && k != forgeyard.NoSpace && k != forgeyard.Unknown {
			return k
		}
	}
	return forgeyard.Other
}

// Interceptor translates errors on both sides of a connection.
type Interceptor struct{}

// WrapUnary implements connect.Interceptor.
func (Interceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		out, err := next(ctx, r)
		if r.Spec().IsClient {
			return out, FromConnect(err)
		}
		return out, ToConnect(err)
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (Interceptor) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, s connect.Spec) connect.StreamingClientConn {
		return clientConn{next(ctx, s)}
	}
}

// WrapStreamingHandler implements connect.Interceptor.
func (Interceptor) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, c connect.StreamingHandlerConn) error { return ToConnect(next(ctx, c)) }
}

type clientConn struct{ connect.StreamingClientConn }

// Receive passes io.EOF through untouched: it is how a stream ends well.
func (c clientConn) Receive(m any) error { return FromConnect(c.StreamingClientConn.Receive(m)) }

// Send passes io.EOF through untouched: the cause is in Receive.
func (c clientConn) Send(m any) error { return FromConnect(c.StreamingClientConn.Send(m)) }
