package consensus

import (
	"bytes"
	"errors"
	"log/slog"

	"github.com/hashicorp/raft"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/forgeyard/forgeyard-node"
)

// Moved is what MoveLog did.
type Moved struct {
	From, To LogStore
	Entries  uint64 // copied and compared; zero if it was there already
}

// MoveLog moves the log of a directory that nobody has open into another store. It can be
// cut short at any instant and done again; until it has ended the log is in one place or
// the other, whole, and a node that is started in between goes on with it.
//
// Errors: NotFound if the directory holds no log, Conflict if a process has it open,
// NoSpace, Corrupt if a copied entry differs.
func MoveLog(dir string, to LogStore, log *slog.Logger) (Moved, error) {
	return moveLog(dir, to, log, func(string) error { return nil })
}

// moveLog calls at after each step; its error ends the move there.
func moveLog(dir string, to LogStore, log *slog.Logger, at func(step string) error) (m Moved, err error) {
	const op = "move the log"
	defer func() { err = moveError(op, err) }()
	p, known, err := readPlace(dir)
	if err == nil && !known {
		err = forgeyard.Errorf(op, forgeyard.NotFound, "%s holds no log", dir)
	}
	if err == nil {
		p, err = p.settle(dir)
	}
	m = Moved{From: p.Log, To: to}
	if err != nil || p.Log == to {
		return m, err
	}
	steps := []struct {
		name string
		do   func() error
	}{
		{"planned", func() error { return logPlace{Log: p.Log, Moving: to}.save(dir) }},
		{"cleared", func() error { return clearLog(dir, to) }},
		{"copied", func() error { m.Entries, err = copyBetween(dir, p.Log, to, log, at); return err }},
		{"moved", func() error { return logPlace{Log: to, Left: p.Log}.save(dir) }},
		{"emptied", func() error { return clearLog(dir, p.Log) }},
		{"done", func() error { return logPlace{Log: to}.save(dir) }},
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			return m, err
		}
		if err := at(s.name); err != nil {
			return m, err
		}
	}
	return m, nil
}

func moveError(op string, err error) error {
	switch {
	case err == nil, isOurs(err):
		return err
	case errors.Is(err, bolterrors.ErrTimeout):
		return forgeyard.E(op, forgeyard.Conflict, err).WithHint("another process has this data directory open: stop it first")
	case isNoSpace(err):
		return forgeyard.E(op, forgeyard.NoSpace, err).WithHint("free space and do it again: the log is where it was")
	}
	return forgeyard.E(op, forgeyard.Other, err)
}

// copyBetween copies the log and compares what arrived, entry by entry.
func copyBetween(dir string, from, to LogStore, log *slog.Logger, at func(string) error) (n uint64, err error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	stable, err := openBolt(stablePath(dir))
	if err != nil {
		return 0, err
	}
	segments, err := openSegments(dir, segmentBytes, newHCLog(log).Named("wal"))
	if err != nil {
		return 0, errors.Join(err, stable.Close())
	}
	var src, dst raft.LogStore = stable, segments
	if to == BoltDB {
		src, dst = segments, stable
	}
	n, err = copyLog(dst, src, func() error { return at("copying") })
	if err == nil {
		err = compareLogs(dst, src)
	}
	if err = errors.Join(err, segments.Close(), stable.Close()); err == nil && to == BoltDB {
		err = onBolt(dir, dropTombstone)
	}
	return n, err
}

// copyLog appends every entry of one log to another, and calls each after each write.
func copyLog(to, from raft.LogStore, each func() error) (n uint64, err error) {
	err = eachChunk(from, func(logs []*raft.Log) error {
		if err := to.StoreLogs(logs); err != nil {
			return err
		}
		n += uint64(len(logs))
		if each == nil {
			return nil
		}
		return each()
	})
	return n, err
}

func compareLogs(got, want raft.LogStore) error {
	return eachChunk(want, func(logs []*raft.Log) error {
		for _, w := range logs {
			var g raft.Log
			if err := got.GetLog(w.Index, &g); err != nil {
				return err
			}
			if g.Term != w.Term || g.Type != w.Type || !bytes.Equal(g.Data, w.Data) || !bytes.Equal(g.Extensions, w.Extensions) || !g.AppendedAt.Equal(w.AppendedAt) {
				return forgeyard.Errorf("move the log", forgeyard.Corrupt, "entry %d arrived changed", w.Index)
			}
		}
		return nil
	})
}

// eachChunk reads a log in its order, a bounded number of entries and bytes at a time.
func eachChunk(from raft.LogStore, f func([]*raft.Log) error) error {
	first, err := from.FirstIndex()
	if err != nil {
		return err
	}
	last, err := from.LastIndex()
	if err != nil || first == 0 {
		return err
	}
	var chunk []*raft.Log
	size := 0
	for i := first; i <= last; i++ {
		l := new(raft.Log)
		if err := from.GetLog(i, l); err != nil {
			return err
		}
		chunk, size = append(chunk, l), size+len(l.Data)
		if len(chunk) < deleteChunk && size < MaxCommand && i < last {
			continue
		}
		if err := f(chunk); err != nil {
			return err
		}
		chunk, size = nil, 0
	}
	return nil
}
