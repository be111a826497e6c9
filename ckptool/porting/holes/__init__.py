"""Fill the hole of each tensor of the target, from its matched unit or in another way.

The words of this package, beside those of `ckptool.porting`:

    fill         give a hole an expression over the source (`Filled`).
    same names   said of two sides: the source has all keys of the model but for buffers (`Filling.same_names`).
    same code    said of two units: equal keys in the modules around them show that one code made both
                 (`Filling.same_code`).
    shown        said of what the forward pass of a side shows (`facts` of the entries of its signature), if it was
                 traced.
    answered     said of a question that is not open, because the source's code shows the answer (`Filled.learn`).
    plain        said of a tensor or an expression: as it was before the rule that is described changed it.
    ask          add an open question to what fills a hole, mostly with another expression as its option.
    exchange     fill a hole with the option of a question, and make the expression before it the option.
    change       make another expression of what fills a hole, and of all options of its questions.
"""
