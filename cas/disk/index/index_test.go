package index

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func key(i int) []byte { return []byte(fmt.Sprintf("o%06d", i)) }

// A power cut keeps what was synced, and of the rest what came first.
func TestPowerCut(t *testing.T) {
	for round := range 20 {
		mem := vfs.NewCrashableMem()
		db, err := Open(Options{Dir: "index", FS: mem})
		must(t, err)
		for i := range 40 {
			must(t, db.Update(i <= round, func(b *Batch) error { return b.Put(key(i), []byte{byte(i)}) }))
		}
		db2, err := Open(Options{Dir: "index", FS: mem.CrashClone(vfs.CrashCloneCfg{})})
		must(t, err)
		n := 0
		must(t, db2.Scan([]byte("o"), nil, func(k, v []byte) bool {
			if !bytes.Equal(k, key(n)) || v[0] != byte(n) {
				t.Fatalf("row %d is %s", n, k)
			}
			n++
			return true
		}))
		if n < round+1 {
			t.Fatalf("%d of %d synced rows are there", n, round+1)
		}
		must(t, errors.Join(db.Close(), db2.Close()))
	}
}

// An update is all or nothing, reads its own writes, and an error undoes it.
func TestUpdate(t *testing.T) {
	db, err := Open(Options{Dir: filepath.Join(t.TempDir(), "index"), NoSync: true})
	must(t, err)
	boom := errors.New("boom")
	err = db.Update(true, func(b *Batch) error {
		must(t, b.Put(key(1), []byte("x")))
		if v, ok, err := b.Get(key(1)); err != nil || !ok || string(v) != "x" {
			t.Fatalf("%q %v %v", v, ok, err)
		}
		return boom
	})
	if !errors.Is(err, boom) {
		t.Fatal(err)
	}
	if _, ok, err := db.Get(key(1)); ok || err != nil {
		t.Fatalf("an update that failed left something: %v", err)
	}
	must(t, db.Close())
	must(t, db.Close())
	if err := db.Update(true, func(*Batch) error { return nil }); err == nil {
		t.Fatal("a closed index takes updates")
	}
}

// What can be read of a database that cannot be opened: tables and logs, each for itself.
func TestSalvage(t *testing.T) {
	mem := vfs.NewMem()
	db, err := Open(Options{Dir: "index", FS: mem})
	must(t, err)
	put := func(from, to int) {
		must(t, db.Update(true, func(b *Batch) error {
			for i := from; i < to; i++ {
				must(t, errors.Join(b.Put(key(i), []byte{byte(i)}), b.Put([]byte(fmt.Sprint("x", i)), nil)))
			}
			return nil
		}))
	}
	put(0, 100)
	must(t, db.Flush())
	put(100, 150)
	got := map[string]byte{}
	passed, err := Salvage(mem, "index", 'o', func(k, v []byte) error { got[string(k)] = v[0]; return nil })
	if err != nil || passed != nil || len(got) != 150 {
		t.Fatalf("%d rows, passed %v: %v", len(got), passed, err)
	}
	for i := range 150 {
		if got[string(key(i))] != byte(i) {
			t.Fatalf("row %d", i)
		}
	}
	must(t, db.Close())
}

// FuzzSalvage: files of any bytes are passed over, or read; none of them stops the process.
func FuzzSalvage(f *testing.F) {
	mem := vfs.NewMem()
	db, err := Open(Options{Dir: "index", FS: mem})
	must(f, err)
	must(f, db.Update(true, func(b *Batch) error { return b.Put(key(1), []byte("value")) }))
	must(f, errors.Join(db.Flush(), db.Close()))
	names, err := mem.List("index")
	must(f, err)
	for _, n := range names {
		file, err := mem.Open(filepath.Join("index", n))
		must(f, err)
		st, err := file.Stat()
		must(f, err)
		b := make([]byte, st.Size())
		_, _ = file.ReadAt(b, 0) // an empty one has nothing
		f.Add(b, filepath.Ext(n) == ".sst")
		must(f, file.Close())
	}
	f.Fuzz(func(t *testing.T, b []byte, table bool) {
		mem := vfs.NewMem()
		name := "000002.log"
		if table {
			name = "000003.sst"
		}
		must(t, mem.MkdirAll("index", 0o700))
		file, err := mem.Create(filepath.Join("index", name), vfs.WriteCategoryUnspecified)
		must(t, err)
		_, err = file.Write(bytes.Clone(b))
		must(t, errors.Join(err, file.Close()))
		if _, err := Salvage(mem, "index", 'o', func(_, _ []byte) error { return nil }); err != nil {
			t.Fatal(err)
		}
	})
}

// Look gives what Get gives, for keys in any order, twice the same among them.
func TestLook(t *testing.T) {
	db, err := Open(Options{Dir: filepath.Join(t.TempDir(), "index"), NoSync: true})
	must(t, err)
	for from := 0; from < 3000; from += 300 {
		must(t, db.Update(false, func(b *Batch) error {
			for i := from; i < from+300; i += 2 {
				if err := errors.Join(b.Put(key(i*7919%3000), []byte(fmt.Sprint(i))), b.Delete(key(i*31%3000))); err != nil {
					return err
				}
			}
			return nil
		}))
		if from%900 == 0 {
			must(t, db.Flush())
		}
	}
	var keys [][]byte
	for i := range 3100 {
		keys = append(keys, key(i*17%3100))
	}
	keys = append(keys, keys[3], []byte{}, []byte("o"))
	seen := make([]int, len(keys))
	found := 0
	must(t, db.Look(keys, func(i int, v []byte) {
		seen[i]++
		want, ok, err := db.Get(keys[i])
		must(t, err)
		if ok != (v != nil) || !bytes.Equal(want, v) {
			t.Fatalf("row %s is %q, want %q", keys[i], v, want)
		}
		if ok {
			found++
		}
	}))
	for i, n := range seen {
		if n != 1 {
			t.Fatalf("key %d was answered %d times", i, n)
		}
	}
	if found < 300 || found > 2900 {
		t.Fatalf("%d rows were found, which tests little", found)
	}
	must(t, db.Look(nil, func(int, []byte) { t.Fatal("an answer to no question") }))
	must(t, db.Close())
	if err := db.Look(keys, func(int, []byte) {}); err == nil {
		t.Fatal("a closed index answers")
	}
}
