// Package rpc is how the benches ask the processes that they measure: by HTTP, and where
// the answer is compared with the peer's by the peer's own library.
package rpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/forgeyard/forgeyard-node/internal/cborx"
)

// asIs passes bytes on.
type asIs struct{}

func (asIs) Name() string { return "as-is" }

func (asIs) Marshal(v any) ([]byte, error) {
	b, ok := v.(*[]byte)
	if !ok {
		return nil, fmt.Errorf("%T is not bytes", v)
	}
	return *b, nil
}

func (asIs) Unmarshal(data []byte, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("%T is not bytes", v)
	}
	*b = data
	return nil
}

// window is that of both ends of a connection, the peer's as well. Where the library is left
// to find one, it measures the connection with a ping beside almost each message of a lone
// client: a third of what the client costs, and nothing that the API of a node does.
const window = 1 << 20

const method = "/bench.Trio/Propose"

// Serve answers proposals until the process ends. They go the peer's way: the same library
// on both sides of the connection, so that what differs is what is behind it.
func Serve(l net.Listener, propose func(context.Context, []byte) ([]byte, error)) error {
	s := grpc.NewServer(grpc.ForceServerCodec(asIs{}), grpc.InitialConnWindowSize(window), grpc.InitialWindowSize(window))
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "bench.Trio", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Propose", Handler: func(_ any, ctx context.Context, read func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			var in []byte
			if err := read(&in); err != nil {
				return nil, err
			}
			out, err := propose(ctx, in)
			return &out, err
		}}},
	}, nil)
	return s.Serve(l)
}

// Dial connects, as the peer's client does before it counts.
func Dial(ctx context.Context, at string) (*grpc.ClientConn, error) {
	c, err := grpc.NewClient("passthrough:///"+at, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodec(asIs{})), grpc.WithInitialConnWindowSize(window), grpc.WithInitialWindowSize(window))
	if err != nil {
		return nil, err
	}
	c.Connect()
	for s := c.GetState(); s != connectivity.Ready; s = c.GetState() {
		if !c.WaitForStateChange(ctx, s) {
			return nil, errors.Join(context.Cause(ctx), c.Close())
		}
	}
	return c, nil
}

// Ask makes one proposal.
func Ask(ctx context.Context, c *grpc.ClientConn, in []byte) (out []byte, err error) {
	err = c.Invoke(ctx, method, &in, &out)
	return out, err
}

// Handle answers one HTTP call with what f makes of its body.
func Handle(w http.ResponseWriter, r *http.Request, f func(*http.Request, []byte) (any, error)) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	var v any
	if err == nil {
		v, err = f(r, body)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	_, _ = w.Write(cborx.Marshal(v)) // a client that is gone asks no more
}

// Post makes one HTTP call.
func Post[T any](ctx context.Context, c *http.Client, at, path string, body []byte) (v T, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+at+path, bytes.NewReader(body))
	if err != nil {
		return v, err
	}
	res, err := c.Do(r)
	if err != nil {
		return v, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s says %s: %.200s", at, res.Status, b)
	}
	if err != nil {
		return v, err
	}
	return v, cborx.Unmarshal(b, &v)
}

// Each gives every client its share.
func Each[T any](clients int, all []T, f func(T) error) error {
	var wg sync.WaitGroup
	errs := make(chan error, clients)
	for c := range clients {
		wg.Go(func() {
			for n := c; n < len(all); n += clients {
				if err := f(all[n]); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	return <-errs
}
