package sandbox

import (
	"errors"
	"os"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/node/executor"
)

// A pipe that holds less than a secret has bytes fails a start, and does not stop it for ever.
func TestPipeWithoutRoom(t *testing.T) {
	fs, err := (&Executor{}).pipes(made, []executor.File{{Bytes: make([]byte, 2<<20)}}) // more than any pipe holds, as the kernel makes it
	closeAll(fs)
	if forgeyard.KindOf(err) != forgeyard.Unavailable || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%v", err)
	}
}
