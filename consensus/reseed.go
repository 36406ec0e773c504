package consensus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/hashicorp/raft"

	"github.com/forgeyard/forgeyard-node"
)

// A group that lost its majority for good goes on as another group: with one voter, from
// what that node has, under a name of its own, the lineage. Nodes of different lineages
// do not hear each other's raft calls, so the old group, should its majority come back,
// neither takes the new one's node along nor counts it.
//
//	<dir>/reseed    the plan, synced before anything changes; a crash at any point goes on here
//	<dir>/lineage   the lineage; absent in the first group of a site
//
// Steps, each harmless to repeat: take in what the snapshot and the log hold, committed or
// not; apply Command at Index; write the snapshot of that with this node as the only
// voter; empty the log; write the lineage; remove the plan.

// Reseed is the plan of it.
type Reseed struct {
	Lineage string `json:"lineage"`
	Index   uint64 `json:"index"` // of Command; above all that was ever in the old log, wherever
	Command []byte `json:"command"`
	// State is the name of a file in the group's directory with what StateMachine.Restore
	// reads, and StateIndex its index: the node goes on from that and has no log. Empty:
	// from its own snapshot and log.
	State      string `json:"state,omitempty"`
	StateIndex uint64 `json:"state_index,omitempty"`
}

func reseedPath(dir string) string  { return filepath.Join(dir, "reseed") }
func lineagePath(dir string) string { return filepath.Join(dir, "lineage") }

func (r Reseed) check() error {
	switch {
	case r.Lineage == "" || len(r.Lineage) > maxLineage || strings.Contains(r.Lineage, lineageMark):
		return forgeyard.Errorf("reseed", forgeyard.Invalid, "lineage %q is not 1 to %d letters without %s", forgeyard.Clip(r.Lineage, 80), maxLineage, lineageMark)
	case r.Index == 0 || r.Index <= r.StateIndex:
		return forgeyard.Errorf("reseed", forgeyard.Invalid, "index %d is not above %d", r.Index, r.StateIndex)
	case len(r.Command) > MaxCommand:
		return forgeyard.Errorf("reseed", forgeyard.Limit, "a command of %d bytes is larger than %d", len(r.Command), MaxCommand)
	case r.State != filepath.Base(r.State) && r.State != "":
		return forgeyard.Errorf("reseed", forgeyard.Invalid, "the state's file %q is not in the group's directory", forgeyard.Clip(r.State, 80))
	}
	return nil
}

// PlanReseed makes the next Open of dir, which nobody has open now, carry it out.
func PlanReseed(dir string, r Reseed) error {
	if err := r.check(); err != nil {
		return err
	}
	b, err := json.Marshal(r)
	if err != nil {
		return forgeyard.E("reseed", forgeyard.Other, err)
	}
	if err := replaceFile(reseedPath(dir), b); err != nil {
		return forgeyard.E("reseed", forgeyard.Other, err)
	}
	return nil
}

func replaceFile(path string, b []byte) error {
	tmp := path + ".tmp"
	if err := writeSynced(tmp, b); err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func readReseed(dir string) (*Reseed, error) {
	b, err := readSmall(reseedPath(dir), 2*MaxCommand)
	if b == nil || err != nil {
		return nil, err
	}
	return decodeReseed(b)
}

func decodeReseed(b []byte) (*Reseed, error) {
	var r Reseed
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, forgeyard.E("reseed plan", forgeyard.Corrupt, err)
	}
	if err := r.check(); err != nil {
		return nil, forgeyard.E("reseed plan", forgeyard.Corrupt, err)
	}
	return &r, nil
}

// readSmall returns nil for a file that is not there.
func readSmall(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, most))
}

// ReadLineage says to which group the log in dir belongs; empty: the first of its site.
func ReadLineage(dir string) (string, error) {
	b, err := readSmall(lineagePath(dir), maxLineage)
	return strings.TrimSpace(string(b)), err
}

// Lineage names the group that this node belongs to; empty: the first of its site.
func (g *Group) Lineage() string { return *g.lineage.Load() }

func (g *Group) setLineage(l string) error {
	if err := replaceFile(lineagePath(g.cfg.Dir), []byte(l)); err != nil {
		return err
	}
	g.lineage.Store(&l)
	return nil
}

func (g *Group) readLineage() error {
	l, err := ReadLineage(g.cfg.Dir)
	if err != nil {
		return forgeyard.E("open consensus", forgeyard.Other, err)
	}
	g.lineage.Store(&l)
	r, err := readReseed(g.cfg.Dir)
	g.reseed.Store(r)
	return err
}

// Reseed carries the plan out in this process. Once it is written down it happens, now or
// at the next start. It returns when this node leads the new group. Conflict while this
// node leads, or is behind what it gave up.
func (g *Group) Reseed(ctx context.Context, r Reseed) error {
	const op = "reseed"
	in, err := g.running(op)
	if err != nil {
		return err
	}
	switch {
	case g.IsLeader():
		return forgeyard.Errorf(op, forgeyard.Conflict, "this node leads a group that works")
	case g.plan.Load() != nil:
		return forgeyard.Errorf(op, forgeyard.Conflict, "this node gave its log up and has not got it back: another one must do it")
	case r.State != "":
		return forgeyard.Errorf(op, forgeyard.Invalid, "a state from a file is for a group that is not open")
	}
	if err := PlanReseed(g.cfg.Dir, r); err != nil {
		return err
	}
	g.refused.Store(nil)
	g.reseed.Store(&r)
	in.report(fault{kind: Reseeding, err: forgeyard.Errorf(op, forgeyard.Unavailable, "the group begins anew as %s", r.Lineage)})
	return g.awaitReseeded(ctx)
}

func (g *Group) awaitReseeded(ctx context.Context) error {
	for {
		changed := g.machine.Changed()
		if err := g.refused.Load(); err != nil {
			return *err
		}
		if g.reseed.Load() == nil && g.IsLeader() {
			return nil
		}
		select {
		case <-changed:
		case <-g.cfg.Clock.After(g.cfg.Timings.Commit):
		case <-ctx.Done():
			return forgeyard.E("reseed", forgeyard.Unknown, context.Cause(ctx)).WithHint("it is written down and goes on by itself")
		case <-g.quit:
			return forgeyard.E("reseed", forgeyard.Unknown, errClosed).WithHint("it is written down and goes on at the next start")
		}
	}
}

// carryOut runs before raft starts.
func (in *instance) carryOut(r *Reseed) error {
	g := in.g
	if g.plan.Load() != nil {
		return forgeyard.Errorf("reseed", forgeyard.Conflict, "the log of this node is being rebuilt")
	}
	at, err := in.snaps.at()
	if err != nil {
		return err
	}
	if at.Index < r.Index {
		err := in.seedSnapshot(r)
		if errors.Is(err, errRefused) && r.State == "" {
			return in.giveUpReseed(err)
		}
		if err != nil {
			return err
		}
	}
	if err := in.emptyLog(); err != nil {
		return err
	}
	if err := g.setLineage(r.Lineage); err != nil {
		return err
	}
	for _, name := range []string{reseedPath(g.cfg.Dir), filepath.Join(g.cfg.Dir, r.State)} {
		if name == filepath.Clean(g.cfg.Dir) {
			continue // no state of its own
		}
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	g.reseed.Store(nil)
	g.events.put(Event{Kind: Reseeded, Term: g.Term(), Index: r.Index})
	return syncDir(g.cfg.Dir)
}

// errRefused is in the chain of the error where the state machine does not take the command
// that begins the new group.
var errRefused = errors.New("the state refuses to begin anew")

// giveUpReseed ends a plan that cannot be carried out, now or at any later start. Nothing
// of it was begun: the group goes on as it was.
func (in *instance) giveUpReseed(why error) error {
	g := in.g
	if err := os.Remove(reseedPath(g.cfg.Dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	g.reseed.Store(nil)
	g.refused.Store(&why)
	g.cfg.Log.Error("the plan to begin the group anew is given up", "err", why)
	return syncDir(g.cfg.Dir)
}

func (in *instance) emptyLog() error {
	first, err := in.store.FirstIndex()
	if err != nil {
		return err
	}
	last, err := in.store.LastIndex()
	if err != nil || last == 0 {
		return err
	}
	return in.store.DeleteRange(first, last)
}

// seedSnapshot brings the state up to the command and writes it as the new group's first
// snapshot.
func (in *instance) seedSnapshot(r *Reseed) error {
	m := in.g.machine
	m.onDiverged = in.diverged
	if in.g.Term() == 0 { // from a file: this node never was in a group
		if err := in.store.SetUint64(keyCurrentTerm, 1); err != nil {
			return err
		}
	}
	term := in.g.Term()
	if m.applied.Load() < r.Index {
		whole := m.whole()
		m.hold(r.Index) // what the state may refuse is seen by nobody
		if err := in.takeIn(r); err != nil {
			return err
		}
		v := m.fsm.Apply(Entry{Index: r.Index, Term: term, Data: r.Command})
		if f, ok := v.(interface{ Err() error }); ok && f.Err() != nil {
			return errors.Join(forgeyard.E("reseed", forgeyard.KindOf(f.Err()), fmt.Errorf("%w: %w", errRefused, f.Err())), m.reset(whole))
		}
		m.reached(r.Index)
		m.announce()
	}
	m.seen = r.Index
	self := raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(in.g.cfg.LocalID), Address: raft.ServerAddress(in.g.cfg.LocalAddr)}
	state, err := m.Snapshot()
	if err != nil {
		return err
	}
	sink, err := in.snaps.Create(raft.SnapshotVersionMax, r.Index, term, raft.Configuration{Servers: []raft.Server{self}}, r.Index, plainPeers{})
	if err != nil {
		return err
	}
	return state.Persist(sink)
}

// takeIn brings the state to the end of what this node has, or of the file.
func (in *instance) takeIn(r *Reseed) error {
	m := in.g.machine
	if r.State != "" {
		f, err := os.Open(filepath.Join(in.g.cfg.Dir, r.State))
		if err != nil {
			return err
		}
		defer f.Close()
		return m.fsm.Restore(f, r.StateIndex)
	}
	if list, err := in.snaps.List(); err != nil {
		return err
	} else if len(list) > 0 && list[0].Index > m.applied.Load() {
		_, rc, err := in.snaps.Open(list[0].ID)
		if err != nil {
			return err
		}
		defer rc.Close()
		if err := m.Restore(rc); err != nil {
			return err
		}
	}
	return in.replay()
}

// Tail returns the commands that this node's log has after an index, committed or not, in
// their order: what a plan takes in beside the state.
func (g *Group) Tail(after uint64) ([]Entry, error) {
	const op = "log"
	in, err := g.running(op)
	if err != nil {
		return nil, err
	}
	var out []Entry
	_, last, err := g.LastEntry()
	if err != nil {
		return nil, err
	}
	for i := after + 1; i <= last; i++ {
		var l raft.Log
		if err := in.store.GetLog(i, &l); err != nil {
			return nil, forgeyard.E(op, forgeyard.Other, err)
		}
		if l.Type != raft.LogCommand {
			continue
		}
		f, err := decodeFrame(l.Data)
		if err != nil {
			return nil, err
		}
		commands := f.batch
		if f.kind == frameCommand {
			commands = [][]byte{f.data}
		}
		for _, data := range commands {
			out = append(out, Entry{Index: l.Index, Term: l.Term, Data: data})
		}
	}
	return out, nil
}

// replay applies the log's entries that are not in the state yet, committed or not: the
// lost voters may have committed each of them.
func (in *instance) replay() error {
	m := in.g.machine
	first, err := in.store.FirstIndex()
	if err != nil {
		return err
	}
	last, err := in.store.LastIndex()
	if err != nil {
		return err
	}
	next := m.applied.Load() + 1
	if last >= next && first > next {
		return forgeyard.Errorf("reseed", forgeyard.Corrupt, "the log begins at %d and the state ends at %d", first, next-1)
	}
	for i := next; i <= last; i++ {
		var l raft.Log
		if err := in.store.GetLog(i, &l); err != nil {
			return err
		}
		m.ApplyBatch([]*raft.Log{&l})
		if h := m.halted.Load(); h != nil {
			return h
		}
		if m.quarantined.Load() {
			return forgeyard.E("reseed", forgeyard.Corrupt, errQuarantined)
		}
	}
	return nil
}

// plainPeers writes addresses into a snapshot as they are.
type plainPeers struct{ raft.Transport }

func (plainPeers) EncodePeer(_ raft.ServerID, a raft.ServerAddress) []byte { return []byte(a) }

// lineageMark stands between a node's address and its lineage in the header of each raft
// call. Without a lineage the header is what it always was.
const lineageMark = "#"

// EncodePeer puts the lineage beside the address.
func (t *guardedTransport) EncodePeer(id raft.ServerID, a raft.ServerAddress) []byte {
	b := t.innerTransport.EncodePeer(id, a)
	if l := t.in.g.Lineage(); l != "" {
		b = append(append(b, lineageMark...), l...)
	}
	return b
}

// DecodePeer takes it off again.
func (t *guardedTransport) DecodePeer(b []byte) raft.ServerAddress {
	addr, _, _ := strings.Cut(string(b), lineageMark)
	return t.innerTransport.DecodePeer([]byte(addr))
}

var errStranger = errors.New("this node belongs to another lineage of the group: one of them was given up")

// ours reports whether a call comes from this node's own group; if not, it was answered.
// A node with nothing in its log takes on the lineage of whoever calls it first: it is
// new, or was told to begin anew.
func (t *guardedTransport) ours(rpc *raft.RPC) bool {
	h, ok := rpc.Command.(raft.WithRPCHeader)
	if !ok {
		return true
	}
	addr, lineage, _ := strings.Cut(string(h.GetRPCHeader().Addr), lineageMark)
	g := t.in.g
	if g.cfg.off.lineage || lineage == g.Lineage() {
		return true
	}
	if g.Lineage() == "" && len(lineage) <= maxLineage && t.in.blank() {
		if err := g.setLineage(lineage); err == nil {
			return true
		}
	}
	if rpc.Reader != nil {
		_, _ = io.Copy(io.Discard, rpc.Reader) // else the caller's next message begins in the middle of this one
	}
	rpc.Respond(nil, errStranger)
	if f := g.cfg.OnStranger; f != nil {
		f(addr)
	}
	return false
}

// blank: nothing was ever in this node's log.
func (in *instance) blank() bool {
	last, err := in.store.LastIndex()
	if err != nil || last != 0 {
		return false
	}
	snap, err := in.snaps.at()
	return err == nil && snap == position{}
}
