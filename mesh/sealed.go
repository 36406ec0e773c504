package mesh

import (
	"bytes"
	"crypto/ed25519"
	"io"

	"filippo.io/age"
	"filippo.io/age/agessh"
	"github.com/libp2p/go-libp2p/core/peer"
	"golang.org/x/crypto/ssh"

	"github.com/forgeyard/forgeyard-node"
)

// A sealed value is a file of age (age-encryption.org/v1) whose recipients are the Ed25519
// keys of nodes, each as `ssh-ed25519`: nodes need no other key for it, and a person with
// the age program and a node's key in OpenSSH form can open one.

// maxUnsealed bounds what Open gives.
const maxUnsealed = 64 << 10

// Seal encrypts a value so that each of the nodes can open it, and nobody else.
func Seal(value []byte, nodes []peer.ID) ([]byte, error) {
	var to []age.Recipient
	for _, id := range nodes {
		r, err := recipient(id)
		if err != nil {
			return nil, forgeyard.Errorf("seal", forgeyard.Invalid, "%s cannot be a recipient: %v", id, err)
		}
		to = append(to, r)
	}
	var b bytes.Buffer
	w, err := age.Encrypt(&b, to...)
	if err != nil {
		return nil, forgeyard.E("seal", forgeyard.Invalid, err)
	}
	if _, err := w.Write(value); err != nil {
		return nil, forgeyard.E("seal", forgeyard.Other, err)
	}
	if err := w.Close(); err != nil {
		return nil, forgeyard.E("seal", forgeyard.Other, err)
	}
	return b.Bytes(), nil
}

func recipient(id peer.ID) (age.Recipient, error) {
	k, err := id.ExtractPublicKey()
	if err != nil {
		return nil, err
	}
	raw, err := k.Raw()
	if err != nil {
		return nil, err
	}
	pub, err := ssh.NewPublicKey(ed25519.PublicKey(raw))
	if err != nil {
		return nil, err
	}
	return agessh.NewEd25519Recipient(pub)
}

// Open decrypts a value that was sealed for this node; the caller clears it. Denied: it was
// sealed for others, or its bytes were changed.
func (i Identity) Open(sealed []byte) ([]byte, error) {
	id, err := agessh.NewEd25519Identity(ed25519.NewKeyFromSeed(i.seed.Reveal()))
	if err != nil {
		return nil, forgeyard.E("open", forgeyard.Other, err)
	}
	r, err := age.Decrypt(bytes.NewReader(sealed), id)
	if err != nil {
		return nil, forgeyard.Errorf("open", forgeyard.Denied, "it is not sealed for this node's key")
	}
	b, err := io.ReadAll(io.LimitReader(r, maxUnsealed+1))
	if err != nil || len(b) > maxUnsealed {
		clear(b)
		return nil, forgeyard.Errorf("open", forgeyard.Denied, "its bytes are not what was sealed, or more than %d", maxUnsealed)
	}
	return b, nil
}
