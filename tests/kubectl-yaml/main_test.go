package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func mistakes(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	found, _, err := check(path)
	if err != nil {
		found = append(found, err.Error())
	}
	return strings.Join(found, "\n")
}

// crd is a definition whose spec has one schema.
func crd(schema string) string {
	return "kind: CustomResourceDefinition\nspec: {versions: [{schema: {openAPIV3Schema: {properties: {spec: " + schema + "}}}}]}\n"
}

func TestWordsOfYaml11AreFound(t *testing.T) {
	for text, says := range map[string]string{
		"mode: off":                       `.mode is "off" as written and false for kubectl`,
		"list: [a, yes]":                  `.list[1] is "yes"`,
		"on: 1":                           ".true is there for kubectl only",
		"a: 1\na: 2":                      "already",
		crd("{properties: {'n': {}}}"):    `the API's "n", written bare, becomes false`,
		crd("{enum: [Act, 'Off']}"):       `the API's "Off", written bare, becomes false`,
		crd("{a: [{enum: ['~', null]}]}"): `the API's "~", written bare, becomes`,
	} {
		if found := mistakes(t, text); !strings.Contains(found, says) {
			t.Errorf("%q: found %q, wanted %q", text, found, says)
		}
	}
}

func TestWhatEveryoneReadsTheSameIsFine(t *testing.T) {
	for _, text := range []string{
		"a: {b: [1, 1.5, true, null, \"no\"], c: 30s}\n---\na: 1\n",
		crd("{enum: [Running, Drained], properties: {name: {}}}"),
		"kind: CustomResourceDefinition\nspec: {versions: [{schema: {openAPIV3Schema: {properties: {status: {enum: ['True']}}}}}]}\n",
	} {
		if found := mistakes(t, text); found != "" {
			t.Errorf("%q: found %q", text, found)
		}
	}
}
