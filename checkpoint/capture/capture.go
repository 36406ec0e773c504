// Package capture takes checkpoints from workloads and puts them back.
//
// The workload is hostile and may be running: it owns the directories that are read
// here, and may change them between any two system calls. Three habits answer that.
// Everything is reached through os.Root, so no link leads out of the directory. What is
// checked is what was stored: a file's digest is the one under which the store kept it,
// never that of an earlier read. And the payload's tree is made from those digests, not
// from the directory, so what is added later is not part of it.
//
//	sealed directory   list → CheckMarker → store while scanning for secrets → CheckMarker again → manifest → pin
//	exit code 85       the whole process tree is dead: list the declared files → store → write the marker ourselves → manifest → pin
//
// What is pinned here is not committed: the caller replicates, proposes the commit, and
// unpins what the log refused. Restore brings a payload back whole, or not at all.
//
// The two directories of the protocol are read and answered here too (Watcher, and the
// functions below it). The program is never waited for, and never waits on a lock.
package capture

import (
	"fmt"
	"runtime"
	"slices"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/job/machine"
)

// Bounds of this package.
const (
	// storeWorkers put files at once, so that their syncs share a commit of the store.
	storeWorkers = 8
	// restoreWorkers write files at once: while one waits for the disk, others are read.
	restoreWorkers = 4
	// maxEntries bounds a listing, directories included.
	maxEntries = 2 * checkpoint.MaxFiles
	// dirChunk is how many names are read at once: a directory of millions is left early.
	dirChunk = 1024
	// minSecret is the shortest value that is looked for: one of three bytes is found in
	// any large file by chance, and would refuse every checkpoint.
	minSecret = 4
	// maxNames bounds the names read of a protocol directory.
	maxNames = 64 * dirChunk
	// maxOutbox bounds the messages that one look takes.
	maxOutbox = 256
	// keepAnswers is how many answers stay in the inbox.
	keepAnswers = 256
)

// Expect is what must hold of the execution whose state is taken.
type Expect struct {
	Authority   forgeyard.Authority
	Contract    checkpoint.Contract
	LastSeq     int                      // highest slot answered in this epoch; 0: none
	Secrets     [][]byte                 // resolved values, to be found nowhere in the payload (K16)
	Progress    checkpoint.Progress      // for IngestExit: the last heartbeat
	Sensitivity checkpoint.Sensitivity   // "": internal
	OS, Arch    string                   // ""; this machine's
	Pieces      bool                     // every program of the site reads files that are kept in pieces
	Memory      *Memory                  // nil: each file is cut anew
	Machine     *machine.Facts           // nil: the site has programs that read no manifest with it
	MayBeOpen   func(effect string) bool // see checkpoint.Current
	Open        []string                 // likewise
	Seal        Seal                     // of a restricted one; nil: none is taken
}

func (e Expect) current() checkpoint.Current {
	return checkpoint.Current{Attempt: e.Authority.Attempt, Epoch: e.Authority.Fence.Epoch, LastSeq: e.LastSeq, MayBeOpen: e.MayBeOpen, Open: e.Open}
}

func (e Expect) binding(m checkpoint.Marker) checkpoint.Binding {
	large := func(f checkpoint.File) bool { return f.Size > cas.BlockSize }
	b := checkpoint.Binding{Pieces: e.Pieces && e.Sensitivity != checkpoint.Restricted && slices.ContainsFunc(m.Files, large), Authority: e.Authority, Contract: e.Contract.ID, OS: e.OS, Arch: e.Arch, Machine: e.Machine, Sensitivity: e.Sensitivity}
	if b.OS == "" {
		b.OS = runtime.GOOS
	}
	if b.Arch == "" {
		b.Arch = runtime.GOARCH
	}
	return b
}

// Ingested is a checkpoint that is whole in the local store and pinned under Owner. It
// is not committed yet.
type Ingested struct {
	Marker   checkpoint.Marker
	Manifest checkpoint.Manifest
	ID       forgeyard.Digest // of the manifest
	Payload  forgeyard.Digest // tree
	Blobs    []cas.Ref        // manifest and marker, for replication
	Trees    []cas.Ref        // the payload's root, for replication with all that it names
	Owner    string           // of the pin; Unpin it when the log refuses the commit
}

// Commit makes the log's record of it.
func (g Ingested) Commit(at forgeyard.Wall, replicas []forgeyard.RunnerID) checkpoint.Commit {
	return checkpoint.CommitOf(g.Manifest, at, replicas)
}

// Owner names the pin of a slot.
func Owner(attempt forgeyard.AttemptID, epoch uint64, seq int) string {
	return fmt.Sprintf("checkpoint/%s.%d.%d", attempt, epoch, seq)
}
