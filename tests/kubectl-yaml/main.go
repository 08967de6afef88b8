// Reads YAML as kubectl does, and fails where kubectl's parser sees something else than a YAML 1.2 reader does.
//
//	go run . FILE...
//
// kubectl parses YAML 1.1, where a bare on, off, yes, no, y, n or ~ is a boolean or null. A key or an enum value of our
// API by such a name would reach the API server as something else than the user wrote. So for every file both readings
// must give the same JSON; and for every CustomResourceDefinition each property and each enum value of its spec, written
// bare, must stay the text that it is. (Status is written by programs, and Kubernetes' own conditions say "True" there.)
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"sort"

	yaml12 "go.yaml.in/yaml/v3"
	kubectl "sigs.k8s.io/yaml"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: kubectl-yaml FILE...")
		os.Exit(2)
	}
	failed, words := 0, 0
	for _, path := range os.Args[1:] {
		mistakes, checked, err := check(path)
		words += checked
		if err != nil {
			mistakes = append(mistakes, err.Error())
		}
		for _, mistake := range mistakes {
			fmt.Printf("%s: %s\n", path, mistake)
			failed++
		}
	}
	if failed > 0 {
		os.Exit(1)
	}
	fmt.Printf("kubectl reads %d files and %d names of the API as they are written\n", len(os.Args)-1, words)
}

// check returns what kubectl would read differently, and how many names of a CRD were looked at.
func check(path string) (mistakes []string, words int, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, 0, err
	}
	for _, document := range bytes.Split(text, []byte("\n---\n")) {
		asWritten, err := readAsWritten(document)
		if errors.Is(err, io.EOF) {
			continue
		} else if err != nil {
			return mistakes, words, err
		}
		// Strict: a key that comes twice is an error, as it is with kubectl.
		var asKubectl any
		if err := kubectl.UnmarshalStrict(document, &asKubectl); err != nil {
			return mistakes, words, err
		}
		mistakes = append(mistakes, differences("", asWritten, asKubectl)...)
		found := map[string]bool{}
		for _, schema := range specs(asKubectl) {
			names(schema, found)
		}
		for word := range found {
			words++
			if read, ok := bare(word); !ok {
				mistakes = append(mistakes, fmt.Sprintf("the API's %q, written bare, becomes %v", word, read))
			}
		}
	}
	sort.Strings(mistakes)
	return mistakes, words, nil
}

// readAsWritten reads YAML 1.2 and brings it into the types of encoding/json.
func readAsWritten(document []byte) (value any, err error) {
	var raw any
	if err := yaml12.NewDecoder(bytes.NewReader(document)).Decode(&raw); err != nil {
		return nil, err
	}
	text, err := json.Marshal(raw)
	if err != nil {
		return nil, fmt.Errorf("a key is not text: %w", err)
	}
	return value, json.Unmarshal(text, &value)
}

// differences lists the paths at which two JSON values differ.
func differences(path string, written, kubectl any) (found []string) {
	switch written := written.(type) {
	case map[string]any:
		if other, ok := kubectl.(map[string]any); ok {
			for key, value := range written {
				found = append(found, differences(path+"."+key, value, other[key])...)
			}
			for key := range other {
				if _, ok := written[key]; !ok {
					found = append(found, fmt.Sprintf("%s.%s is there for kubectl only", path, key))
				}
			}
			return found
		}
	case []any:
		if other, ok := kubectl.([]any); ok && len(other) == len(written) {
			for i := range written {
				found = append(found, differences(fmt.Sprintf("%s[%d]", path, i), written[i], other[i])...)
			}
			return found
		}
	}
	if !reflect.DeepEqual(written, kubectl) {
		found = append(found, fmt.Sprintf("%s is %#v as written and %#v for kubectl", path, written, kubectl))
	}
	return found
}

// specs returns the schemas of `spec` of a CustomResourceDefinition, one a version; none for anything else.
func specs(document any) (schemas []any) {
	if at(document, "kind") != "CustomResourceDefinition" {
		return nil
	}
	versions, _ := at(document, "spec", "versions").([]any)
	for _, version := range versions {
		schemas = append(schemas, at(version, "schema", "openAPIV3Schema", "properties", "spec"))
	}
	return schemas
}

// at follows keys through nested maps; nil where there is nothing.
func at(value any, path ...string) any {
	for _, key := range path {
		below, _ := value.(map[string]any)
		value = below[key]
	}
	return value
}

// names collects the property names and string enum values of all schemas below value.
func names(value any, found map[string]bool) {
	switch value := value.(type) {
	case map[string]any:
		if properties, ok := value["properties"].(map[string]any); ok {
			for name := range properties {
				found[name] = true
			}
		}
		if values, ok := value["enum"].([]any); ok {
			for _, word := range values {
				if word, ok := word.(string); ok {
					found[word] = true
				}
			}
		}
		for _, below := range value {
			names(below, found)
		}
	case []any:
		for _, below := range value {
			names(below, found)
		}
	}
}

// bare reads a word as a value and as a key, without quotes; false if either becomes something else.
func bare(word string) (read any, ok bool) {
	var value map[string]any
	if err := kubectl.Unmarshal([]byte(word+": 1\nvalue: "+word+"\n"), &value); err != nil {
		return err, false
	}
	_, key := value[word]
	return value["value"], key && value["value"] == word
}
