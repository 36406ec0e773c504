package site

import (
	"bytes"
	"fmt"
	"reflect"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/internal/golden"
)

// A secret of the site is what was sealed and for whom, bounded, until it is set anew or
// removed; only who may vote can change it.
func TestSecretsOfTheSite(t *testing.T) {
	l := newLab(t)
	me := []forgeyard.RunnerID{"R1"}
	l.must(SecretSet{Name: "prod/pin", Sealed: []byte("one"), For: me})
	l.must(SecretSet{Name: "prod/pin", Sealed: []byte("two"), For: me})
	if s, _ := l.s.Secrets.Get("prod/pin"); string(s.Sealed) != "two" || !reflect.DeepEqual(s.For, me) || l.s.Secrets.Len() != 1 {
		t.Fatalf("%+v", s)
	}
	for what, b := range map[string]SecretSet{
		"name": {Name: "a b", Sealed: []byte("x"), For: me}, "empty": {Name: "n", For: me}, "large": {Name: "n", Sealed: make([]byte, MaxSealed+1), For: me},
		"nobody": {Name: "n", Sealed: []byte("x")}, "a stranger": {Name: "n", Sealed: []byte("x"), For: []forgeyard.RunnerID{"R9"}}, "twice": {Name: "n", Sealed: []byte("x"), For: []forgeyard.RunnerID{"R1", "R1"}},
	} {
		if err := l.do(b).Err(); forgeyard.KindOf(err) != forgeyard.Invalid {
			t.Errorf("%s: %v", what, err)
		}
	}
	full := bytes.Repeat([]byte{1}, MaxSealed)
	for n := range maxSealedTotal/MaxSealed - 1 {
		l.must(SecretSet{Name: fmt.Sprint("s", n), Sealed: full, For: me})
	}
	if err := l.do(SecretSet{Name: "more", Sealed: full, For: me}).Err(); forgeyard.KindOf(err) != forgeyard.Limit {
		t.Errorf("beyond the bound of all: %v", err)
	}
	l.must(SecretRemove{Name: "prod/pin"})
	if err := l.do(SecretRemove{Name: "prod/pin"}).Err(); forgeyard.KindOf(err) != forgeyard.NotFound || l.s.Secrets.Has("prod/pin") {
		t.Errorf("%v", err)
	}
	for n := l.s.Secrets.Len(); n < maxSecrets; n++ {
		l.must(SecretSet{Name: fmt.Sprint("t", n), Sealed: []byte("x"), For: me})
	}
	if err := l.do(SecretSet{Name: "one-more", Sealed: []byte("x"), For: me}).Err(); forgeyard.KindOf(err) != forgeyard.Limit {
		t.Errorf("beyond the bound: %v", err)
	}
	for _, b := range []Body{SecretSet{}, SecretRemove{}} {
		if r, _ := l.s.RightOf(b); r != MayVote || FormatOf(b) != FormatRuns {
			t.Errorf("%T needs %v and format %d", b, r, FormatOf(b))
		}
	}
}

// TestBytesOfSecrets holds them in the log and in a snapshot, plain and packed.
func TestBytesOfSecrets(t *testing.T) {
	var set SecretSet
	var remove SecretRemove
	var secret Secret
	golden.Fill(t, &set)
	golden.Fill(t, &remove)
	golden.Fill(t, &secret)
	im := image{Format: snapshotFormat, Log: FormatRuns, Secrets: []Secret{secret}}
	s, err := DecodeState(cborx.Marshal(im))
	if err != nil {
		t.Fatal(err)
	}
	rows := golden.Rows(t, "testdata/secrets.hex", []golden.Row{
		{Name: "SecretSet", Bytes: cborx.Marshal(set)}, {Name: "SecretRemove", Bytes: cborx.Marshal(remove)}, {Name: "snapshot", Bytes: s.Encode()}, {Name: "packed", Bytes: s.Snapshot()},
	})
	for _, row := range rows[2:] {
		back, err := DecodeState(row.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := back.Secrets.Get(secret.Name); !reflect.DeepEqual(got, secret) {
			t.Errorf("%s: lost on the way: %+v", row.Name, got)
		}
	}
}
