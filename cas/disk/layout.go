package disk

import (
	"context"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/forgeyard/forgeyard-node"
)

const (
	blobsDir      = "blobs"
	pinsDir       = "pins"
	partialDir    = "partial"
	quarantineDir = "quarantine"
	tmpDir        = "tmp"
	indexDir      = "index"
	oldIndexFile  = "index.db"
)

func (s *Store) blobDir(d forgeyard.Digest) string {
	h := d.Hex()
	return filepath.Join(s.cfg.Dir, blobsDir, h[:2], h[2:4])
}

// blobPath names one generation of a blob. The generation is new with every write,
// so that a late eviction of an old copy can never remove a newer one (C06).
func (s *Store) blobPath(d forgeyard.Digest, gen uint64) string {
	return filepath.Join(s.blobDir(d), d.Hex()+"."+strconv.FormatUint(gen, 10))
}

func (s *Store) partialPath(manifest forgeyard.Digest) string {
	return filepath.Join(s.cfg.Dir, partialDir, manifest.Hex())
}

func (s *Store) emptyPath() string { return filepath.Join(s.cfg.Dir, "empty") }

// parseBlobName is the inverse of the last element of blobPath.
func parseBlobName(name string) (forgeyard.Digest, uint64, bool) {
	h, g, ok := strings.Cut(name, ".")
	d, ok2 := parseHex(h)
	if !ok || !ok2 {
		return forgeyard.Digest{}, 0, false
	}
	gen, err := strconv.ParseUint(g, 10, 64)
	return d, gen, err == nil && strconv.FormatUint(gen, 10) == g
}

func parseHex(h string) (forgeyard.Digest, bool) {
	var d forgeyard.Digest
	if len(h) != 2*len(d) || strings.ToLower(h) != h {
		return d, false
	}
	_, err := hex.Decode(d[:], []byte(h))
	return d, err == nil
}

// generations lists the files that bear the digest's name, newest first.
func (s *Store) generations(d forgeyard.Digest) ([]uint64, error) {
	es, err := os.ReadDir(s.blobDir(d))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []uint64
	for i := len(es) - 1; i >= 0; i-- {
		if got, gen, ok := parseBlobName(es[i].Name()); ok && got == d {
			out = append(out, gen)
		}
	}
	return out, nil
}

func isInterrupted(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
