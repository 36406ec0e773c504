package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
)

// RA-447: who follows a log by way of another node and stops to read costs neither node more
// than what is on its way, and the work nothing: it ends while its reader stands still. The
// reader that goes on misses no frame.
func TestStalledReaderOverTheMesh(t *testing.T) {
	const size, most = 64 << 20, 16 << 20
	site := makeSite(t, 2)
	one, two := site[0], site[1]
	one.wait("both online", func() bool { return two.node.State() == StateOnline })
	if _, err := one.node.Drain(t.Context(), &forgeyardv1.DrainRequest{}); err != nil {
		t.Fatal(err)
	}
	_, id := one.submit(strings.NewReplacer("echo hello from $FORGEYARD_EPOCH", fmt.Sprintf("until [ -e go ]; do sleep 0.05; done; head -c %d /dev/zero", size), "disk: 64MiB", "disk: 512MiB").Replace(helloJob))
	one.wait("running", func() bool { return one.show(id).Status == "running" })
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	stalled, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	last, bytes := uint64(0), 0
	go func() {
		ended <- one.node.Log(ctx, forgeyard.JobID(id), 0, true, func(f *forgeyardv1.LogFrame) error {
			if f.Seq != last+1 {
				return fmt.Errorf("frame %d follows %d", f.Seq, last)
			}
			if last = f.Seq; last == 1 {
				close(stalled)
				<-goOn
			}
			if f.Stream == "stdout" {
				bytes += len(f.Data)
			}
			return nil
		})
	}()
	<-stalled
	before := heap()
	spaces, err := filepath.Glob(filepath.Join(two.dir, dirWorkspaces, "*", "build"))
	if err != nil || len(spaces) != 1 {
		t.Fatalf("%v %v", spaces, err)
	}
	if err := os.WriteFile(filepath.Join(spaces[0], "go"), nil, 0o644); err != nil { // only now is there a log
		t.Fatal(err)
	}
	if j := one.waitDone(id); j.Status != "done" {
		t.Fatalf("%v", j)
	}
	grown := int64(heap()) - int64(before)
	t.Logf("%d KiB of memory for a log of %d KiB that waits for its reader", grown>>10, size>>10)
	if grown > most {
		t.Errorf("%d bytes of memory for a log of %d that nobody reads", grown, size)
	}
	close(goOn)
	if err := <-ended; err != nil || bytes != size {
		t.Errorf("%d bytes of %d, %v", bytes, size, err)
	}
}

// heap is what is in use after a collection.
func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
