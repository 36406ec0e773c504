package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"syscall"
	"testing"

	"connectrpc.com/connect"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/api/forgeyard/v1/forgeyardv1connect"
)

type failing struct {
	forgeyardv1connect.UnimplementedRunServiceHandler
	err error
}

func (f failing) Show(context.Context, *connect.Request[forgeyardv1.ShowRunRequest]) (*connect.Response[forgeyardv1.Run], error) {
	return nil, f.err
}

func (f failing) Attach(context.Context, *connect.Request[forgeyardv1.AttachRequest], *connect.ServerStream[forgeyardv1.RunEvent]) error {
	return f.err
}

// Every kind arrives with its text and its hint, by a call and by a stream.
func TestKindsCrossTheWire(t *testing.T) {
	for k := forgeyard.Other; k <= forgeyard.Interrupted; k++ {
		want := forgeyard.Errorf("show", k, "value 7 is not in [1, 5]").WithHint("try 3")
		_, h := forgeyardv1connect.NewRunServiceHandler(failing{err: want}, connect.WithInterceptors(Interceptor{}))
		srv := httptest.NewServer(h)
		c := forgeyardv1connect.NewRunServiceClient(srv.Client(), srv.URL, connect.WithInterceptors(Interceptor{}))
		_, err := c.Show(t.Context(), connect.NewRequest(&forgeyardv1.ShowRunRequest{}))
		check(t, want, err)
		s, err := c.Attach(t.Context(), connect.NewRequest(&forgeyardv1.AttachRequest{}))
		if err == nil {
			for s.Receive() {
				t.Error("nothing was sent")
			}
			err = s.Err()
		}
		check(t, want, err)
		srv.Close()
	}
}

func check(t *testing.T, want *forgeyard.Error, err error) {
	t.Helper()
	var e *forgeyard.Error
	if !errors.As(err, &e) || e.Kind != want.Kind || e.Hint != want.Hint || err.Error() != want.Error() {
		t.Errorf("%v: got %v, %q", want.Kind, forgeyard.KindOf(err), err)
	}
}

type sending struct {
	forgeyardv1connect.UnimplementedRunServiceHandler
}

func (sending) Attach(_ context.Context, _ *connect.Request[forgeyardv1.AttachRequest], out *connect.ServerStream[forgeyardv1.RunEvent]) error {
	return out.Send(&forgeyardv1.RunEvent{Seq: 1})
}

func TestStreamEndsWell(t *testing.T) {
	_, h := forgeyardv1connect.NewRunServiceHandler(sending{}, connect.WithInterceptors(Interceptor{}))
	srv := httptest.NewServer(h)
	defer srv.Close()
	c := forgeyardv1connect.NewRunServiceClient(srv.Client(), srv.URL, connect.WithInterceptors(Interceptor{}))
	s, err := c.Attach(t.Context(), connect.NewRequest(&forgeyardv1.AttachRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for s.Receive() {
		n++
	}
	if n != 1 || s.Err() != nil {
		t.Fatalf("%d messages, then %v", n, s.Err())
	}
}

func TestNoServerIsUnavailable(t *testing.T) {
	srv := httptest.NewServer(nil)
	srv.Close()
	c := forgeyardv1connect.NewRunServiceClient(srv.Client(), srv.URL, connect.WithInterceptors(Interceptor{}))
	_, err := c.Show(t.Context(), connect.NewRequest(&forgeyardv1.ShowRunRequest{}))
	if forgeyard.KindOf(err) != forgeyard.Unavailable {
		t.Fatalf("%v: %v", forgeyard.KindOf(err), err)
	}
}

// TestCutStream: an end that is gone in the middle of a message may come back.
func TestCutStream(t *testing.T) {
	for _, cause := range []error{io.ErrUnexpectedEOF, syscall.ECONNRESET, net.ErrClosed} {
		err := FromConnect(connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("protocol error: %w", cause)))
		if forgeyard.KindOf(err) != forgeyard.Unavailable {
			t.Errorf("%v is %v", cause, forgeyard.KindOf(err))
		}
	}
}
