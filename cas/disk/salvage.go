package disk

import (
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/disk/index"
)

// salvage takes the small objects out of an index that was set aside. A row of theirs is
// its own proof: the bytes hash to the key or they do not. What was deleted and is still in
// a file comes back with the rest, and the next collection takes it.
func (s *Store) salvage(dir string) error {
	var page []victim
	bytes := map[forgeyard.Digest][]byte{}
	n := 0
	flush := func() error {
		err := s.update(func(u *update) error {
			for _, v := range page {
				if _, ok := u.record(v.digest); ok {
					continue
				}
				u.putRecord(v.digest, v.rec)
				u.put(tInline, bytes[v.digest], v.digest[:])
				u.bytes, u.objects, n = u.bytes+v.rec.Size, u.objects+1, n+1
			}
			return nil
		})
		page = page[:0]
		clear(bytes)
		return err
	}
	now := s.cfg.Clock.Wall()
	passed, err := index.Salvage(vfs.Default, dir, tInline, func(k, v []byte) error {
		var d forgeyard.Digest
		if len(k) != 1+len(d) || len(v) == 0 || len(v) > cas.BlockSize {
			return nil
		}
		copy(d[:], k[1:])
		if _, twice := bytes[d]; twice || cas.Sum(v) != d {
			return nil
		}
		bytes[d] = append([]byte(nil), v...)
		page = append(page, victim{digest: d, rec: record{Size: int64(len(v)), Gen: 1, Stored: now.UnixNano(), Used: hourOf(now), Synced: true, Inline: true}})
		if len(page) < gcPage {
			return nil
		}
		return flush()
	})
	if err == nil {
		err = flush()
	}
	if passed != nil {
		s.log.Error("cas: not all of the old index could be read; small objects that are missing must be fetched again", "dir", dir, "err", passed)
	}
	s.log.Info("cas: small objects were taken out of the old index", "dir", dir, "objects", n)
	return err
}
