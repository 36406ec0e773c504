package node

import (
	"errors"
	"io"
	"testing"

	"connectrpc.com/connect"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/api/wire"
)

// A device that was unplugged is another matter than a host that went away: only the
// latter takes the job from its holder without a word about the work.
func TestHostLostIsNoFaultOfTheDevice(t *testing.T) {
	answer := func(k forgeyard.Kind, why string) error {
		return wire.FromConnect(wire.ToConnect(forgeyard.Errorf("read device dut", k, "%s", why)))
	}
	for name, c := range map[string]struct {
		err  error
		lost bool
	}{
		"it ended well":           {io.EOF, false},
		"unplugged":               {answer(forgeyard.Unavailable, "input/output error"), false},
		"another token":           {answer(forgeyard.Stale, "token 5 is over"), false},
		"the node is stopping":    {answer(forgeyard.Interrupted, "the node is shutting down"), true},
		"the connection is reset": {errors.New("connection reset by peer"), true},
		"nobody answers":          {wire.FromConnect(connect.NewError(connect.CodeUnavailable, errors.New("dial: refused"))), true},
	} {
		r := &remoteConsole{ended: make(chan struct{})}
		if r.hostLost() != nil {
			t.Error("lost before anything ended")
		}
		r.end(c.err)
		if got := r.hostLost(); (got != nil) != c.lost {
			t.Errorf("%s: %v", name, got)
		}
	}
}
