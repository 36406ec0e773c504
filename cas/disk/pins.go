package disk

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sort"

	"github.com/fxamacker/cbor/v2"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

// A pin's file:
//
//	32 bytes  BLAKE3 of the rest
//	rest      cas.Pin as CBOR
//
// Its name is the digest of the owner's name.
func (s *Store) pinPath(owner string) string {
	return filepath.Join(s.cfg.Dir, pinsDir, cas.Sum([]byte(owner)).Hex())
}

func encodePin(p cas.Pin) []byte {
	b := marshal(p)
	sum := cas.Sum(b)
	return append(sum[:], b...)
}

func decodePin(b []byte) (cas.Pin, error) {
	var p cas.Pin
	if len(b) < forgeyard.DigestSize {
		return p, errors.New("it is too short")
	}
	sum, rest := b[:forgeyard.DigestSize], b[forgeyard.DigestSize:]
	if got := cas.Sum(rest); !bytes.Equal(got[:], sum) {
		return p, errors.New("its checksum does not match")
	}
	if err := cbor.Unmarshal(rest, &p); err != nil {
		return p, err
	}
	return p, p.Validate()
}

// loadPins reads every pin. One that cannot be read stops collections, and nothing
// else: to collect without it could take what a checkpoint needs.
func (s *Store) loadPins() error {
	const op = "cas open"
	dir := filepath.Join(s.cfg.Dir, pinsDir)
	es, err := os.ReadDir(dir)
	if err != nil {
		return s.fail(op, err)
	}
	for _, e := range es {
		path := filepath.Join(dir, e.Name())
		var p cas.Pin
		b, err := readBounded(path, maxPinBytes)
		if err == nil {
			p, err = decodePin(b)
		}
		if err != nil {
			s.log.Error("cas: a pin is unreadable; nothing is collected until it is removed", "file", path, "err", err)
			s.badPins = append(s.badPins, path)
			continue
		}
		s.pins[p.Owner] = p
	}
	return nil
}

func readBounded(path string, n int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer closeQuiet(f)
	return io.ReadAll(io.LimitReader(f, n))
}

// Pin implements cas.Store.
func (s *Store) Pin(_ context.Context, p cas.Pin) error {
	const op = "cas pin"
	if err := p.Validate(); err != nil {
		return err
	}
	p.Roots, p.Trees = append([]forgeyard.Digest(nil), p.Roots...), append([]forgeyard.Digest(nil), p.Trees...)
	leave, err := s.enter(op)
	if err != nil {
		return err
	}
	defer leave()
	s.pinMu.Lock()
	defer s.pinMu.Unlock()
	if err := s.replaceFile(s.pinPath(p.Owner), encodePin(p)); err != nil {
		return s.fail(op, err)
	}
	s.pins[p.Owner] = p
	s.freshPins = append(s.freshPins, p)
	s.pinEpoch++
	s.unhold(p.Owner)
	return nil
}

// Unpin implements cas.Store.
func (s *Store) Unpin(_ context.Context, owner string) error {
	const op = "cas unpin"
	if err := cas.ValidateOwner(owner); err != nil {
		return err
	}
	leave, err := s.enter(op)
	if err != nil {
		return err
	}
	defer leave()
	s.pinMu.Lock()
	defer s.pinMu.Unlock()
	if _, ok := s.pins[owner]; ok {
		if err := os.Remove(s.pinPath(owner)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return s.fail(op, err)
		}
		if err := s.syncDir(filepath.Join(s.cfg.Dir, pinsDir)); err != nil {
			return s.fail(op, err)
		}
		delete(s.pins, owner)
		s.pinEpoch++
	}
	s.unhold(owner)
	return nil
}

// Pins implements cas.Store: those that have not expired, by owner.
func (s *Store) Pins(context.Context) ([]cas.Pin, error) {
	s.pinMu.Lock()
	defer s.pinMu.Unlock()
	return s.livePins(), nil
}

// livePins is under pinMu.
func (s *Store) livePins() []cas.Pin {
	now := s.cfg.Clock.Wall()
	out := make([]cas.Pin, 0, len(s.pins))
	for _, p := range s.pins {
		if !p.Expired(now) {
			out = append(out, p)
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Owner < out[j].Owner })
	return out
}

// replaceFile writes a small file so that a reader after any crash sees the old one
// or the new one.
func (s *Store) replaceFile(path string, b []byte) error {
	f, err := s.createTemp()
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil && !s.cfg.NoSync {
		err = s.cfg.power.file(f)
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return s.syncDir(filepath.Dir(path))
}
