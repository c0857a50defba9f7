# SPDX-License-Identifier: Apache-2.0
"""Writes a tokenizer of words of three letters into a directory.

The simulated engine counts such a word with the blank before it as one token,
as this tokenizer does, so that both sides count the same.
"""
import itertools
import string
import sys

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

words = ["".join(letters) for letters in itertools.product(string.ascii_lowercase, repeat=3)]
vocabulary = {word: i for i, word in enumerate(["<unk>", "<s>", "</s>"] + words)}
tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
).save_pretrained(sys.argv[1])
